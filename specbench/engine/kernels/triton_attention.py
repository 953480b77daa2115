"""Triton kernels of attention over a tree's rows: every cached key is read once per key head.

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

    A query sees the first `first` [] rows; `bias` [n, num_more] masks the `num_more` rows after
    them. With a window, row i sees only rows from `begins[i]` on; the first begin is the smallest.
    Stores, for each query head of each row, the highest score and, relative to it, the sums of the
    weights and of the weighted values.
    """
    head, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    places = block * ROWS + tl.arange(0, ROWS)
    is_row = places < group * n
    row, query_head = places % n, head * group + places // n
    dims = tl.arange(0, DIM)
    follow(EARLY)
    source = queries + row.to(tl.int64)[:, None] * queries_stride + query_head[:, None] * DIM
    query_rows = tl.load(source + dims[None, :], mask=is_row[:, None], other=0.0)
    start = tl.load(first).to(tl.int32)
    num_rows = start + num_more
    lowest = 0
    if HAS_WINDOW:
        lowest = tl.load(begins).to(tl.int32) // BLOCK * BLOCK
        row_begin = tl.load(begins + row, mask=is_row, other=0).to(tl.int32)
    share = tl.cdiv(tl.cdiv(num_rows - lowest, BLOCK), tl.num_programs(2)) * BLOCK
    begin = lowest + split * share
    end = tl.minimum(begin + share, num_rows)
    head_rows = rows + head * DIM
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted_sums = tl.zeros([ROWS, DIM], tl.float32)
    for at in range(begin, end, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        is_in = columns < end
        lines = head_rows + columns.to(tl.int64)[:, None] * rows_stride + dims[None, :]
        keys = tl.load(lines, mask=is_in[:, None], other=0.0)
        scores = tl.dot(query_rows, tl.trans(keys), input_precision="ieee") * scale
        if HAS_CAP:  # soft_cap * tanh(scores / soft_cap)
            scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0)
        after_start = columns - start
        masked = bias + row[:, None] * num_more + after_start[None, :]
        is_after_start = is_row[:, None] & (is_in & (after_start >= 0))[None, :]
        scores += tl.load(masked, mask=is_after_start, other=0.0).to(tl.float32)
        if HAS_WINDOW:  # finite, since a row may see nothing of a split
            scores = tl.where(columns[None, :] >= row_begin[:, None], scores, HIDDEN)
        scores = tl.where(is_in[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        values = tl.load(lines + kv_width, mask=is_in[:, None], other=0.0)
        product = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        weighted_sums = weighted_sums * shrink[:, None] + product
        total = total * shrink + tl.sum(weights, 1)
        top = new_top
    num_heads = tl.num_programs(0) * group
    to = (split * n + row).to(tl.int64) * num_heads + query_head
    tl.store(parts + to[:, None] * DIM + dims[None, :], weighted_sums, mask=is_row[:, None])
    tl.store(tops + to, top, mask=is_row)
    tl.store(totals + to, total, mask=is_row)


@triton.jit
def join_splits(
    parts, tops, totals, sinks, out, num_places, num_splits, num_heads,
    HAS_SINKS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The attention's output for a query head of a row, from the results of its splits.

    `sinks` [num_heads] are scores of keys without a value.
    """
    slots = tl.program_id(0).to(tl.int64)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
    is_in = splits < num_splits
    at = splits.to(tl.int64) * num_places + slots
    follow(EARLY)
    top = tl.load(tops + at, mask=is_in, other=float("-inf"))
    highest = tl.max(top)
    if HAS_SINKS:
        sink = tl.load(sinks + slots % num_heads).to(tl.float32)
        highest = tl.maximum(highest, sink)
    weights = tl.exp(top - highest)
    total = tl.sum(weights * tl.load(totals + at, mask=is_in, other=0.0))
    if HAS_SINKS:
        total += tl.exp(sink - highest)
    sums = tl.load(parts + at[:, None] * DIM + dims[None, :], mask=is_in[:, None], other=0.0)
    tl.store(out + slots * DIM + dims, tl.sum(sums * weights[:, None], 0) / total)
