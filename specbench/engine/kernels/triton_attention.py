"""Triton kernels of attention over a tree's rows. Each cached key is read once per key head.

`kernels.triton_ops` launches them. Sums are in float32, and a result is rounded once.
`kernels.triton_kernels` explains how a kernel begins early.
"""

import triton
import triton.language as tl

from specbench.engine.kernels.triton_kernels import follow

HIDDEN = tl.constexpr(-1e38)
"""Score of a row outside of a window."""


@triton.jit
def attend_split(
    queries, rows, bias, first, begins, parts, tops, totals,
    n, num_more, group, queries_stride, rows_stride, kv_width, scale, soft_cap,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attention of ROWS queries that share a key head, over one split of the filled cache rows.

    A query is one of the `group` query heads of a row of the tree. It sees the first `first` []
    cache rows. `bias` [n, num_more] masks the `num_more` rows after them. With a window, row i sees
    only the cache rows from `begins[i]` on, and `begins[0]` is the smallest.

    For each query, the kernel stores the highest score. Relative to this score, it also stores the
    sum of the weights and the sum of the weighted values.
    """
    key_head = tl.program_id(0)
    query_block = tl.program_id(1)
    split = tl.program_id(2)
    query = query_block * ROWS + tl.arange(0, ROWS)  # [ROWS]
    is_query = query < group * n
    row = query % n
    query_head = key_head * group + query // n
    dims = tl.arange(0, DIM)
    follow(EARLY)
    row_starts = queries + row.to(tl.int64)[:, None] * queries_stride
    query_starts = row_starts + query_head[:, None] * DIM  # [ROWS, 1]
    query_rows = tl.load(query_starts + dims[None, :], mask=is_query[:, None], other=0.0)
    start = tl.load(first).to(tl.int32)
    num_rows = start + num_more
    lowest = 0  # the first cache row that any query sees, rounded down to a block
    row_begin = 0
    if HAS_WINDOW:
        lowest = tl.load(begins).to(tl.int32) // BLOCK * BLOCK
        row_begin = tl.load(begins + row, mask=is_query, other=0).to(tl.int32)
    begin, end = _split_range(split, lowest, num_rows, BLOCK)
    head_rows = rows + key_head * DIM
    top = tl.full([ROWS], float("-inf"), tl.float32)  # the highest score so far
    total = tl.zeros([ROWS], tl.float32)  # sum of exp(score - top)
    weighted_sums = tl.zeros([ROWS, DIM], tl.float32)  # sum of exp(score - top) * value
    for at in range(begin, end, BLOCK):
        columns = at + tl.arange(0, BLOCK)  # [BLOCK] cache rows
        is_in = columns < end
        key_starts = head_rows + columns.to(tl.int64)[:, None] * rows_stride  # [BLOCK, 1]
        key_places = key_starts + dims[None, :]
        keys = tl.load(key_places, mask=is_in[:, None], other=0.0)  # [BLOCK, DIM]
        scores = tl.dot(query_rows, tl.trans(keys), input_precision="ieee") * scale
        if HAS_CAP:
            scores = _capped(scores, soft_cap)
        scores = _masked(
            scores, bias, row, row_begin, columns, is_query, is_in, start, num_more, HAS_WINDOW
        )
        top, total, weighted_sums = _with_block(
            top, total, weighted_sums, scores, key_places, kv_width, is_in
        )
    num_heads = tl.num_programs(0) * group
    to = (split * n + row).to(tl.int64) * num_heads + query_head  # [ROWS]
    part_places = parts + to[:, None] * DIM + dims[None, :]
    tl.store(part_places, weighted_sums, mask=is_query[:, None])
    tl.store(tops + to, top, mask=is_query)
    tl.store(totals + to, total, mask=is_query)


@triton.jit
def _split_range(split, lowest, num_rows, BLOCK: tl.constexpr):
    """The first row of a split, and the end of its rows. All rows from `lowest` on are split.

    A split may be empty: then its end is not above its begin.
    """
    num_blocks = tl.cdiv(num_rows - lowest, BLOCK)
    blocks_per_split = tl.cdiv(num_blocks, tl.num_programs(2))
    rows_per_split = blocks_per_split * BLOCK
    begin = lowest + split * rows_per_split
    end = tl.minimum(begin + rows_per_split, num_rows)
    return begin, end


@triton.jit
def _capped(scores, soft_cap):
    """soft_cap * tanh(scores / soft_cap)."""
    tanh = 2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0
    return soft_cap * tanh


@triton.jit
def _with_block(top, total, weighted_sums, scores, key_places, kv_width, is_in):
    """The top and the sums of the split's rows so far, and of a block with scores [ROWS, BLOCK].

    A higher top shrinks the earlier weights by exp(old top - new top).
    """
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp(scores - new_top[:, None])  # [ROWS, BLOCK]
    shrink = tl.exp(top - new_top)  # [ROWS]
    value_places = key_places + kv_width
    values = tl.load(value_places, mask=is_in[:, None], other=0.0)  # [BLOCK, DIM]
    product = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    weighted_sums = weighted_sums * shrink[:, None] + product
    total = total * shrink + tl.sum(weights, 1)
    return new_top, total, weighted_sums


@triton.jit
def _masked(
    scores, bias, row, row_begin, columns, is_query, is_in, start, num_more,
    HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Mask scores [ROWS, BLOCK] by `bias` from row `start` on, by the window, and by the split.

    `row` and `row_begin` [ROWS] belong to the queries, `columns` [BLOCK] are cache rows.
    """
    after_start = columns - start
    bias_places = bias + row[:, None] * num_more + after_start[None, :]
    is_after = is_in & (after_start >= 0)  # [BLOCK]
    has_bias = is_query[:, None] & is_after[None, :]  # [ROWS, BLOCK]
    scores += tl.load(bias_places, mask=has_bias, other=0.0).to(tl.float32)
    if HAS_WINDOW:  # a finite score, because a row may see nothing of a split
        scores = tl.where(columns[None, :] >= row_begin[:, None], scores, HIDDEN)
    return tl.where(is_in[None, :], scores, float("-inf"))


@triton.jit
def join_splits(
    parts, tops, totals, sinks, out, num_queries, num_splits, num_heads,
    HAS_SINKS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The attention's output for a query, joined from the results of its splits.

    There are `num_queries` queries, one per row and query head. `sinks` [num_heads] are the scores
    of keys without a value.
    """
    query = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIM)
    is_in = splits < num_splits
    at = splits.to(tl.int64) * num_queries + query
    follow(EARLY)
    top = tl.load(tops + at, mask=is_in, other=float("-inf"))  # [SPLITS]
    highest = tl.max(top)
    if HAS_SINKS:
        sink = tl.load(sinks + query % num_heads).to(tl.float32)
        highest = tl.maximum(highest, sink)
    # output = sum(exp(top - highest) * weighted sums) / sum(exp(top - highest) * totals)
    weights = tl.exp(top - highest)  # [SPLITS]
    split_totals = tl.load(totals + at, mask=is_in, other=0.0)  # [SPLITS]
    total = tl.sum(weights * split_totals)
    if HAS_SINKS:
        total += tl.exp(sink - highest)
    part_places = parts + at[:, None] * DIM + dims[None, :]
    sums = tl.load(part_places, mask=is_in[:, None], other=0.0)  # [SPLITS, DIM]
    out_places = out + query * DIM + dims
    weighted_sum = tl.sum(sums * weights[:, None], 0)  # [DIM]
    tl.store(out_places, weighted_sum / total)
