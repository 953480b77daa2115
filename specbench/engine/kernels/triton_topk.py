"""Triton kernels for top-k: the most likely tokens, and a draft's candidates.

`kernels.triton_ops` and `kernels.triton_drafts` launch them, and `kernels.triton_kernels` explains
how a kernel begins early. Of equal values the first wins.
"""

import triton
import triton.language as tl

from specbench.engine.kernels.triton_kernels import follow

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest number of float32: every real entry exceeds masked ones."""


@triton.jit
def topk_of_few(
    values, best, places, size, K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """The K largest of float64 values [size], the largest first."""
    columns = tl.arange(0, BLOCK)
    is_in = columns < size
    follow(EARLY)
    left = tl.load(values + columns, mask=is_in, other=float("-inf"))
    left = tl.where(is_in, tl.maximum(left, LOWEST), float("-inf"))
    for i in range(K):
        value, at = tl.max(left, 0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(best + i, value)
        tl.store(places + i, at.to(tl.int64))
        left = tl.where(columns == at, float("-inf"), left)


@triton.jit
def topk_of_chunk(
    logits, best, ids, tops, totals, vocab_size, stride,
    K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The K largest of BLOCK logits of a row, largest first; of equal logits, the lowest id.

    Also the maximum, and the sum of exponentials relative to it.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = chunk * BLOCK + tl.arange(0, BLOCK)
    is_in = columns < vocab_size
    follow(EARLY)
    values = tl.load(logits + row * stride + columns, mask=is_in, other=float("-inf"))
    values = tl.where(is_in, tl.maximum(values.to(tl.float32), LOWEST), float("-inf"))
    part = row * tl.num_programs(1) + chunk
    top = tl.max(values)
    tl.store(tops + part, top)
    tl.store(totals + part, tl.sum(tl.exp(values - top)))
    for i in range(K):
        value, at = tl.max(values, 0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(best + part * K + i, value)
        tl.store(ids + part * K + i, chunk * BLOCK + at)
        values = tl.where(columns == chunk * BLOCK + at, float("-inf"), values)


@triton.jit
def topk_of_row(
    best, ids, tops, totals, above, token_ids, scores, chosen, num_chunks,
    HAS_ABOVE: tl.constexpr, HAS_IDS: tl.constexpr, K: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Log-probabilities and ids of a row's K most likely tokens, from its chunks' best.

    If given, the float64 score `above` the row is added, and ids are looked up in `token_ids`.
    """
    row = tl.program_id(0).to(tl.int64)
    chunks, places = tl.arange(0, CHUNKS), tl.arange(0, BLOCK)
    follow(EARLY)
    is_in = chunks < num_chunks
    chunk_tops = tl.load(tops + row * num_chunks + chunks, mask=is_in, other=float("-inf"))
    chunk_totals = tl.load(totals + row * num_chunks + chunks, mask=is_in, other=0.0)
    top = tl.max(chunk_tops)
    log_total = top + tl.log(tl.sum(chunk_totals * tl.exp(chunk_tops - top)))
    first = row * num_chunks * K
    is_in = places < num_chunks * K
    values = tl.load(best + first + places, mask=is_in, other=float("-inf"))
    for i in range(K):
        value, at = tl.max(values, 0, return_indices=True, return_indices_tie_break_left=True)
        score = value - log_total
        if HAS_ABOVE:
            score = score.to(tl.float64) + tl.load(above + row)
        tl.store(scores + row * K + i, score)
        token = tl.load(ids + first + at).to(tl.int64)
        if HAS_IDS:
            token = tl.load(token_ids + token)
        tl.store(chosen + row * K + i, token)
        values = tl.where(places == at, float("-inf"), values)
