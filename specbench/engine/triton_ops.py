"""The operations of a decoder layer as Triton kernels, for decoding on a GPU.

A captured layer of torch's own operations is some 35 small kernels. Here it is seven for a single
row, each product with its norm, activation or residual in one pass over the weights, and ten for a
tree, whose products are cuBLAS's. A tree's attention reads the mask of its own nodes only.

Knows tensors and launches. A kernel rounds once where torch's operations round several times. What
is measured on the device to choose how a kernel is launched changes no bit of its results.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear, silu

from specbench.engine.ops import CacheRows, Heads, Norm, Ops, Place, View
from specbench.engine.triton_best import best_of_chunk, best_of_row, greatest_of_few
from specbench.engine.triton_kernels import (
    attend_split,
    gate_rows,
    join_splits,
    norm_rows,
    project_row,
    turn_and_keep,
)

PRODUCTS = (
    {"ROWS": 4, "STAGES": 0}, {"ROWS": 1, "STAGES": 0}, {"ROWS": 2, "STAGES": 0},
    {"ROWS": 2, "STAGES": 4}, {"ROWS": 4, "STAGES": 3},
)  # fmt: skip
"""How many rows of a weight a program of a product may read, and in how many stages; the fastest is
found by measuring.
"""
PRODUCT_BLOCK = 1024
"""How much of each it reads at a time, which decides the order of the sums."""
MOST_LIKELIEST = 32
"""More of the likeliest tokens are left to torch."""
CHUNK = 1024
"""Logits that one program looks through."""
MOST_FEW = 4096
"""Values that one program looks through for the greatest."""
CACHE_ROWS = 32
"""Rows of the cache that attention takes at a time: more do not fit the registers."""
TILES = {
    16: {"num_warps": 4, "num_stages": 3},
    32: {"num_warps": 4, "num_stages": 2},
    64: {"num_warps": 8, "num_stages": 2},
}
"""How attention is launched for so many queries a program."""


_project_row = triton.autotune(
    list(map(triton.Config, PRODUCTS[: 1 if triton.knobs.runtime.interpret else None])),
    key=["num_out", "size", "HAS_BIAS", "HAS_NORM", "IS_ADDED", "IS_GATED", "EARLY"],
    restore_value=["out"],
    cache_results=True,
)(project_row)


class TritonOps(Ops):
    """Kernels where one is written for the case, torch's operations elsewhere.

    Early, each begins while the one before it ends, which takes compute capability 9.0.
    """

    def __init__(self, num_processors: int, *, is_early: bool = False) -> None:
        super().__init__()
        self.name = f"triton {triton.__version__}" + (", overlapped" if is_early else "")
        self._num_processors = num_processors
        self._how: dict[str, bool] = {"EARLY": is_early}
        if is_early:
            self._how["launch_pdl"] = True

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        n, size = x.shape
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        block = triton.next_power_of_2(size)
        warps = min(max(block // 512, 1), 16)
        norm_rows[(n,)](
            x, norm.weight, out, size, x.stride(0), norm.eps, block, num_warps=warps, **self._how
        )
        return out

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Norm | None = None,
        onto: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if x.shape[0] > 1:
            return super().project(x, weight, bias, norm=norm, onto=onto)
        return self._project(x, weight, bias, norm, onto)

    def project_each(self, x: Tensor, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        return torch.cat([
            self._project(row, weight, None if biases is None else biases[i], None, None)
            for i, (row, weight) in enumerate(zip(x.split(1), weights, strict=True))
        ])  # fmt: skip

    def gated(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:  # fmt: skip
        if act is not silu:
            return super().gated(x, weight, bias, norm, act)
        if x.shape[0] == 1:
            return self._project(x, weight, bias, norm, None, is_gated=True)
        both = linear(self.norm(x, norm), weight, bias)
        n, inner = both.shape[0], both.shape[1] // 2
        out = both.new_empty(n, inner)
        gate_rows[(n, triton.cdiv(inner, 1024))](both, out, inner, BLOCK=1024, **self._how)
        return out

    def likeliest(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        n, vocab_size = logits.shape
        if k > MOST_LIKELIEST or logits.itemsize > 4:
            return super().likeliest(logits, k)
        num_chunks = triton.cdiv(vocab_size, CHUNK)
        best = logits.new_empty(n, num_chunks, k, dtype=torch.float32)
        ids = torch.empty_like(best, dtype=torch.int32)
        tops, totals = (best.new_empty(n, num_chunks) for _ in range(2))
        best_of_chunk[(n, num_chunks)](
            logits, best, ids, tops, totals, vocab_size, logits.stride(0), k, CHUNK, **self._how
        )
        log_probs, chosen = best.new_empty(n, k), ids.new_empty(n, k, dtype=torch.long)
        best_of_row[(n,)](
            best, ids, tops, totals, log_probs, chosen, num_chunks, k,
            triton.next_power_of_2(num_chunks), triton.next_power_of_2(num_chunks * k), **self._how,
        )  # fmt: skip
        return log_probs, chosen

    def likeliest_ids(self, logits: Tensor, k: int) -> Tensor:
        return self.likeliest(logits, k)[1]

    def greatest(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if len(values) > MOST_FEW or values.dtype != torch.float64:
            return super().greatest(values, k)
        best, places = values.new_empty(k), values.new_empty(k, dtype=torch.long)
        block = triton.next_power_of_2(len(values))
        greatest_of_few[(1,)](values, best, places, len(values), k, block, **self._how)
        return best, places

    def keep(self, qkv: Tensor, cached: CacheRows, place: Place, heads: Heads) -> None:
        num_queries, rows, turn = heads.num_kv * heads.group, cached.all, place.turn
        grid = (qkv.shape[0], num_queries + 2 * heads.num_kv)
        turn_and_keep[grid](
            qkv, rows, place.rows, turn, qkv.stride(0), rows.stride(0),
            turn.stride(0) if turn.shape[0] > 1 else 0, num_queries, heads.num_kv,
            heads.dim, triton.next_power_of_2(heads.dim), num_warps=1, **self._how,
        )  # fmt: skip

    def attend(self, queries: Tensor, cached: CacheRows, view: View | None, heads: Heads) -> Tensor:
        dim, rows = heads.dim, cached.all
        if view is None or dim < 16 or dim & (dim - 1):
            return super().attend(queries, cached, view, heads)
        n, num_more = view.bias.shape
        num_rows = n * heads.group
        widest = 64 if queries.element_size() == 2 else 32
        block_rows = min(max(triton.next_power_of_2(num_rows), 16), widest)
        num_blocks = triton.cdiv(num_rows, block_rows)
        wanted = triton.cdiv(2 * self._num_processors, heads.num_kv * num_blocks)
        split_size = CACHE_ROWS * triton.cdiv(view.span, CACHE_ROWS * wanted)
        num_splits = triton.cdiv(view.span, split_size)
        num_places = n * heads.num_kv * heads.group
        parts = queries.new_empty(num_splits, num_places, dim, dtype=torch.float32)
        tops, totals = (parts.new_empty(num_splits, num_places) for _ in range(2))
        attend_split[(heads.num_kv, num_blocks, num_splits)](
            queries, rows, view.bias.contiguous(), view.start, parts, tops, totals, n, num_more,
            heads.group, queries.stride(0), rows.stride(0), heads.kv_width, split_size, dim**-0.5,
            dim, block_rows, CACHE_ROWS, **TILES[block_rows], **self._how,
        )  # fmt: skip
        out = queries.new_empty(n, heads.query_width)
        join_splits[(num_places,)](
            parts, tops, totals, out, num_places, num_splits, dim,
            triton.next_power_of_2(num_splits), num_warps=1, **self._how,
        )  # fmt: skip
        return out

    def _project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None,
        onto: Tensor | None, *, is_gated: bool = False,
    ) -> Tensor:  # fmt: skip
        """`project_row` over x [1, input]; absent tensors are passed as x and not read."""
        num_out = weight.shape[0] // (2 if is_gated else 1)
        out = x.new_empty(1, num_out) if onto is None else onto
        _project_row[lambda chosen: (triton.cdiv(num_out, chosen["ROWS"]),)](
            x, weight, x if bias is None else bias, x if norm is None else norm.weight, out,
            num_out, x.shape[1], 0.0 if norm is None else norm.eps, bias is not None,
            norm is not None, onto is not None, is_gated, BLOCK=PRODUCT_BLOCK, **self._how,
        )  # fmt: skip
        return out
