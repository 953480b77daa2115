"""Triton kernels that find the most likely tokens, and the best candidates of a draft.

`kernels.triton_ops` and `kernels.triton_drafts` launch them, and `kernels.triton_kernels` explains
how a kernel begins early. The first of equal values wins.
"""

import triton
import triton.language as tl

from specbench.engine.kernels.triton_kernels import follow

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest number of float32. Entries are raised to it, so that all exceed masked entries."""


@triton.jit
def _largest(values):
    """The largest of the values [size], and its index. The first of equal values counts."""
    return tl.max(values, 0, return_indices=True, return_indices_tie_break_left=True)


@triton.jit
def topk_of_few(
    values, best, places, size, K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """Store the K largest of the float64 values [size], largest first, and their places."""
    columns = tl.arange(0, BLOCK)
    is_in = columns < size
    follow(EARLY)
    left = tl.load(values + columns, mask=is_in, other=float("-inf"))  # [BLOCK]
    left = tl.where(is_in, tl.maximum(left, LOWEST), float("-inf"))
    for i in range(K):
        value, at = _largest(left)
        tl.store(best + i, value)
        tl.store(places + i, at.to(tl.int64))
        left = tl.where(columns == at, float("-inf"), left)


@triton.jit
def topk_of_chunk(
    logits, best, ids, tops, totals, vocab_size, stride,
    K: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Store the K largest of BLOCK logits of a row, largest first, and their ids.

    Equal logits are ordered by id. Also stores the chunk's maximum in `tops`, and the sum of
    exponentials relative to the maximum in `totals`.
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    first_id = chunk * BLOCK
    columns = first_id + tl.arange(0, BLOCK)  # [BLOCK] token ids
    is_in = columns < vocab_size
    follow(EARLY)
    row_logits = logits + row * stride
    values = tl.load(row_logits + columns, mask=is_in, other=float("-inf"))
    values = tl.maximum(values.to(tl.float32), LOWEST)
    values = tl.where(is_in, values, float("-inf"))
    part = row * tl.num_programs(1) + chunk  # place of this chunk among the chunks of all rows
    top = tl.max(values)
    tl.store(tops + part, top)
    tl.store(totals + part, tl.sum(tl.exp(values - top)))
    for i in range(K):
        value, at = _largest(values)
        tl.store(best + part * K + i, value)
        tl.store(ids + part * K + i, first_id + at)
        values = tl.where(columns == first_id + at, float("-inf"), values)


@triton.jit
def topk_of_row(
    best, ids, tops, totals, above, token_ids, scores, chosen, num_chunks,
    HAS_ABOVE: tl.constexpr, HAS_IDS: tl.constexpr, K: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Store the log-probabilities and the ids of a row's K most likely tokens.

    They are found among the best tokens of the row's chunks. If HAS_ABOVE, the row's float64 score
    in `above` is added. If HAS_IDS, the stored ids are looked up in `token_ids`.
    """
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS)
    places = tl.arange(0, BLOCK)  # places among the best tokens of all chunks
    follow(EARLY)
    is_chunk = chunks < num_chunks
    row_tops = tops + row * num_chunks
    chunk_tops = tl.load(row_tops + chunks, mask=is_chunk, other=float("-inf"))  # [CHUNKS]
    row_totals = totals + row * num_chunks
    chunk_totals = tl.load(row_totals + chunks, mask=is_chunk, other=0.0)  # [CHUNKS]
    # log(sum of exp(logit)) = top + log(sum over chunks of total * exp(chunk's top - top))
    top = tl.max(chunk_tops)
    total = tl.sum(chunk_totals * tl.exp(chunk_tops - top))
    log_total = top + tl.log(total)
    first = row * num_chunks * K
    is_in = places < num_chunks * K
    values = tl.load(best + first + places, mask=is_in, other=float("-inf"))
    for i in range(K):
        value, at = _largest(values)
        score = value - log_total
        if HAS_ABOVE:
            score = score.to(tl.float64) + tl.load(above + row)
        tl.store(scores + row * K + i, score)
        token = tl.load(ids + first + at).to(tl.int64)
        if HAS_IDS:
            token = tl.load(token_ids + token)
        tl.store(chosen + row * K + i, token)
        values = tl.where(places == at, float("-inf"), values)
