"""Triton kernels that grow a draft tree: the nodes to expand next, and the inputs of their pass.

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
    """The K best of a level's float64 scores [size]. Of equal scores the first wins.

    `mask` [beam before, width] of their parents is extended by `sees_itself` [K, K].
    """
    columns, places = tl.arange(0, BLOCK), tl.arange(0, PLACES)
    is_in = columns < size
    is_node = places < K
    follow(EARLY)
    lowered = tl.load(penalty)
    left = tl.load(scores + columns, mask=is_in, other=float("-inf"))
    left = tl.where(is_in, tl.maximum(left, LOWEST), float("-inf"))
    best = tl.zeros([PLACES], tl.int32)
    for i in range(K):
        value, at = tl.max(left, 0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(above + i, value + lowered)
        best = tl.where(places == i, at, best)
        left = tl.where(columns == at, float("-inf"), left)
    parents = best // K
    tl.store(nodes + places, best.to(tl.int64), mask=is_node)
    tl.store(rows + places, parents.to(tl.int64), mask=is_node)
    tl.store(kept + places, tl.load(tokens + best, mask=is_node, other=0), mask=is_node)
    across = tl.arange(0, COLUMNS)[None, :]
    is_before = is_node[:, None] & (across < width)
    is_beam = is_node[:, None] & (across >= width) & (across < width + K)
    before = tl.load(mask + parents[:, None] * width + across, mask=is_before, other=0.0)
    beam = tl.load(sees_itself + places[:, None] * K + across - width, mask=is_beam, other=0.0)
    to = beam_mask + places[:, None] * (width + K) + across
    tl.store(to, before + beam, mask=is_before | is_beam)


@triton.jit
def _normed(values, norm, eps, columns, is_in, size):
    """Root mean square norm of a row [size]."""
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
    """Half of a row of `pairs`: a token's embedding [size], or the row of `hidden` before it.

    Both are normalised if norms are given. The row of `hidden` also goes to `residual`,
    normalised if IS_NORMED.
    """
    row, half = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    is_in = columns < size
    to = pairs + (2 * row + half) * size + columns
    follow(EARLY)
    if half == 0:
        embedded = tl.load(table + tl.load(tokens + row) * size + columns, mask=is_in, other=0.0)
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
