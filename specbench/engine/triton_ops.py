"""The operations of a decoder layer as Triton kernels, for decoding on a GPU.

A captured layer of torch's own operations is some 35 small kernels. Here it is seven for a single
row, each product with its norm, activation or residual in one pass over the weights, and ten for a
tree, whose products are cuBLAS's. A tree's attention reads the mask of its own nodes only.

Knows tensors and launches. A kernel rounds once where torch's operations round several times.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear, silu

from specbench.engine.ops import CacheRows, Heads, Norm, Ops, Place, View
from specbench.engine.triton_kernels import (
    attend_split,
    gate_rows,
    join_splits,
    norm_rows,
    project_row,
    turn_and_keep,
)

PRODUCT = {"ROWS": 4, "BLOCK": 1024}
"""Rows of a weight that one program of a product reads, and how much of them at a time."""
CACHE_ROWS = 32
"""Rows of the cache that attention takes at a time: more do not fit the registers."""
TILES = {
    16: {"num_warps": 4, "num_stages": 3},
    32: {"num_warps": 4, "num_stages": 2},
    64: {"num_warps": 8, "num_stages": 2},
}
"""How attention is launched for so many queries a program."""


class TritonOps(Ops):
    """Kernels where one is written for the case, torch's operations elsewhere."""

    name = f"triton {triton.__version__}"

    def __init__(self, num_processors: int) -> None:
        super().__init__()
        self._num_processors = num_processors

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        n, size = x.shape
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        block = triton.next_power_of_2(size)
        warps = min(max(block // 512, 1), 16)
        norm_rows[(n,)](x, norm.weight, out, size, x.stride(0), norm.eps, block, num_warps=warps)
        return out

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if x.shape[0] > 1:
            return super().project(x, weight, bias, norm=norm, residual=residual)
        return _project(x, weight, bias, norm, residual)

    def gated(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:  # fmt: skip
        if act is not silu:
            return super().gated(x, weight, bias, norm, act)
        if x.shape[0] == 1:
            return _project(x, weight, bias, norm, None, is_gated=True)
        both = linear(self.norm(x, norm), weight, bias)
        n, inner = both.shape[0], both.shape[1] // 2
        out = both.new_empty(n, inner)
        gate_rows[(n, triton.cdiv(inner, 1024))](both, out, inner, BLOCK=1024)
        return out

    def keep(self, qkv: Tensor, cached: CacheRows, place: Place, heads: Heads) -> None:
        num_queries, rows, turn = heads.num_kv * heads.group, cached.all, place.turn
        grid = (qkv.shape[0], num_queries + 2 * heads.num_kv)
        turn_and_keep[grid](
            qkv, rows, place.rows, turn, qkv.stride(0), rows.stride(0),
            turn.stride(0) if turn.shape[0] > 1 else 0, num_queries, heads.num_kv,
            heads.dim, triton.next_power_of_2(heads.dim), num_warps=1,
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
            dim, block_rows, CACHE_ROWS, **TILES[block_rows],
        )  # fmt: skip
        out = queries.new_empty(n, heads.query_width)
        join_splits[(num_places,)](
            parts, tops, totals, out, num_places, num_splits, dim,
            triton.next_power_of_2(num_splits), num_warps=1,
        )  # fmt: skip
        return out


def _project(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None, residual: Tensor | None, *,
    is_gated: bool = False,
) -> Tensor:  # fmt: skip
    """`project_row` over x [1, input]; absent tensors are passed as x and not read."""
    num_out = weight.shape[0] // (2 if is_gated else 1)
    out = x.new_empty(1, num_out)
    project_row[(triton.cdiv(num_out, PRODUCT["ROWS"]),)](
        x, weight, x if bias is None else bias, x if norm is None else norm.weight,
        x if residual is None else residual, out, num_out, x.shape[1],
        0.0 if norm is None else norm.eps, bias is not None, norm is not None,
        residual is not None, is_gated, **PRODUCT,
    )  # fmt: skip
    return out
