"""Triton kernels that grow a draft tree. They choose the nodes to expand, and make their inputs.

`kernels.triton_drafts` launches them, and `kernels.triton_kernels` explains how a kernel begins
early.
"""

import triton
import triton.language as tl

from specbench.engine.kernels.triton_kernels import follow
from specbench.engine.kernels.triton_topk import LOWEST


@triton.jit
def choose_beam(
    scores,
    tokens,
    mask,
    sees_itself,
    penalty,
    nodes,
    above,
    rows,
    kept,
    beam_mask,
    size,
    width,
    K: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Choose the K best candidates of a level by their float64 scores [size], as the new beam.

    The first of equal scores wins. `mask` [nodes of the previous beam, width] says which expanded
    nodes a node of the previous beam sees. A new node sees what its parent sees, and itself
    (`sees_itself` [K, K]). The outputs are the fields of `Beam`; `kept` are its tokens.
    """
    candidates = tl.arange(0, BLOCK)
    places = tl.arange(0, PLACES)  # places in the new beam
    is_in = candidates < size
    is_node = places < K
    follow(EARLY)
    added = tl.load(penalty)
    left = tl.load(scores + candidates, mask=is_in, other=float("-inf"))
    left = tl.where(is_in, tl.maximum(left, LOWEST), float("-inf"))
    best = tl.zeros([PLACES], tl.int32)  # the chosen candidates
    for i in range(K):
        value, at = tl.max(left, 0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(above + i, value + added)
        best = tl.where(places == i, at, best)
        left = tl.where(candidates == at, float("-inf"), left)
    parents = best // K  # each node of the previous beam has K candidates
    tl.store(nodes + places, best.to(tl.int64), mask=is_node)
    tl.store(rows + places, parents.to(tl.int64), mask=is_node)
    tl.store(kept + places, tl.load(tokens + best, mask=is_node, other=0), mask=is_node)
    # The new mask [K, width + K] is [the parent's row of `mask` ; the row of `sees_itself`].
    columns = tl.arange(0, COLUMNS)[None, :]
    is_expanded = is_node[:, None] & (columns < width)
    is_beam = is_node[:, None] & (columns >= width) & (columns < width + K)
    expanded = tl.load(mask + parents[:, None] * width + columns, mask=is_expanded, other=0.0)
    beam = tl.load(sees_itself + places[:, None] * K + columns - width, mask=is_beam, other=0.0)
    to = beam_mask + places[:, None] * (width + K) + columns
    tl.store(to, expanded + beam, mask=is_expanded | is_beam)


@triton.jit
def _normed(values, norm, eps, columns, is_in, size):
    """Apply a root mean square norm to a row [size]."""
    wide = values.to(tl.float32)
    weights = tl.load(norm + columns, mask=is_in, other=0.0).to(tl.float32)
    return wide * tl.rsqrt(tl.sum(wide * wide) / size + eps) * weights


@triton.jit
def pair_rows(
    table,
    tokens,
    hidden,
    rows,
    token_norm,
    hidden_norm,
    pairs,
    residual,
    size,
    stride,
    token_eps,
    hidden_eps,
    HAS_ROWS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    IS_NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Store half of a row of `pairs` [n, 2 * size].

    The first half is the embedding of a token. The second half is the row of `hidden` before it,
    which also goes to `residual`. Both halves are normalised if norms are given. The residual is
    normalised if IS_NORMED.
    """
    row = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    is_in = columns < size
    to = pairs + (2 * row + half) * size + columns
    follow(EARLY)
    if half == 0:
        token = tl.load(tokens + row)
        embedded = tl.load(table + token * size + columns, mask=is_in, other=0.0)
        if HAS_NORMS:
            embedded = _normed(embedded, token_norm, token_eps, columns, is_in, size)
        tl.store(to, embedded, mask=is_in)
    else:
        source = row
        if HAS_ROWS:
            source = tl.load(rows + row)
        before = tl.load(hidden + source * stride + columns, mask=is_in, other=0.0)
        normed = before
        if HAS_NORMS:
            normed = _normed(before, hidden_norm, hidden_eps, columns, is_in, size)
        tl.store(to, normed, mask=is_in)
        if IS_NORMED:
            before = normed
        tl.store(residual + row * size + columns, before, mask=is_in)
