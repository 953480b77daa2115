"""The operations of a decoder layer as Triton kernels, for decoding on a GPU.

A captured layer of torch's own operations has about 35 small kernels. Here it has seven for a
single row, where each product includes its norm, activation or residual in one pass over the
weights, and seven to ten for a tree, whose products are cuBLAS's. A tree's attention reads the
mask of its own nodes only.

A kernel rounds once where torch's operations round several times. Products of several rows are
cuBLAS's: in Vicuna-13B's layers on an H100, a kernel of our own was at most 0.6 % faster for 16 to
64 rows (docs/decisions.md).

If Triton cannot compile or launch a kernel, torch's operation runs in its place. The start-up
check tries each kernel at a few shapes; others come later, such as a wider head, and must not
end the run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear, silu
from triton.errors import TritonError

from specbench.engine.kernels.triton_attention import attend_split, join_splits
from specbench.engine.kernels.triton_experts import project_experts
from specbench.engine.kernels.triton_kernels import (
    gate_rows,
    norm_rows,
    project_row,
    rotate_and_write_kv,
)
from specbench.engine.kernels.triton_plan import CACHE_ROWS, WIDEST_KEY, plan_attention
from specbench.engine.kernels.triton_topk import topk_of_chunk, topk_of_few, topk_of_row
from specbench.engine.layers.experts import Act, Experts, gated, has_grouped
from specbench.engine.layers.operands import CacheRows, CacheSlots, HeadNorm, Heads, Norm, TreeMask
from specbench.engine.layers.ops import Ops, gelu_tanh
from specbench.engine.layers.torch_attention import PLAIN, Scoring
from specbench.errors import reason_of

T = TypeVar("T")
OperationT = TypeVar("OperationT", bound=Callable[..., Any])

TRITONS = ("Triton Error", "PassManager::run failed")
"""Prefixes of errors of Triton's driver and compiler that are not a `TritonError`."""


def or_torch(what: str) -> Callable[[OperationT], OperationT]:
    """Guard an operation: use the one of `Ops` if Triton cannot launch it."""

    def guard(kernels: Any) -> Any:
        torchs = getattr(Ops, kernels.__name__)

        @wraps(kernels)
        def run(self: TritonOps, *args: Any, **named: Any) -> Any:
            return self.tried(
                what, partial(kernels, self, *args, **named), partial(torchs, self, *args, **named)
            )

        return run

    return guard


ROWS = {False: 4, True: 2}
"""Weight rows that each program for a single row reads, by whether the product is gated.

Any number adds in the same order, so results are bitwise equal. Of 1, 2 and 4, these took at most
0.4 % of a chain's time more than the fastest for any product of Vicuna-13B's layers and of one of
768 numbers on an H100 (results/recorded/h100-vicuna-13b).
"""
ROW_BLOCK = 1024
"""Numbers of a weight's row that a program for a single row reads at a time.

It determines the order of the sums.
"""
EXPERT_ROWS, EXPERT_BLOCK = 4, 512
"""Rows of an expert's weight per program, and numbers of a row that it reads at a time."""
MOST_PAIRS = 64
"""Largest number of rows times experts per row; above, a grouped product reads a weight once.

Without one, the limit is the number of experts: all together read each weight once, too.
"""
MAX_TOPK = 32
"""Largest k of the most likely tokens; torch computes larger ones."""
CHUNK = 1024
"""Logits per program."""
MOST_FEW = 4096
"""Largest number of values that one program searches for the largest."""
TILES = {
    16: {"num_warps": 4, "num_stages": 3},
    32: {"num_warps": 8, "num_stages": 2},
    64: {"num_warps": 8, "num_stages": 2},
}
"""Queries per program -> launch options of attention."""


class TritonOps(Ops):
    """Kernels for the cases that have one, torch's operations for the others.

    With `is_early`, each kernel begins while the previous one ends; this needs compute
    capability 9.0. If Triton cannot compile or launch an operation, torch runs it from then
    on, with the reason in `fallbacks`. Torch also runs the products of several rows.
    """

    def __init__(self, num_processors: int, *, is_early: bool = False) -> None:
        super().__init__()
        self.name = f"triton {triton.__version__}" + (", overlapped" if is_early else "")
        self._num_processors = num_processors
        self._how: dict[str, bool] = {"EARLY": is_early}
        if is_early:
            self._how["launch_pdl"] = True

    def tried(self, what: str, kernels: Callable[[], T], torchs: Callable[[], T]) -> T:
        """Result of `kernels`, or of `torchs` after a failure, whose reason is in `fallbacks`.

        Triton raises before the launch, so nothing has been written by then.
        """
        if what not in self.fallbacks:
            try:
                return kernels()
            except (TritonError, RuntimeError) as error:
                if not isinstance(error, TritonError) and not str(error).startswith(TRITONS):
                    raise
                self.fallbacks[what] = f"run by torch, since {reason_of(error)}"
        return torchs()

    @or_torch("norms")
    def norm(self, x: Tensor, norm: Norm, residual: Tensor | None = None) -> Tensor:
        n, size = x.shape
        if residual is not None and not residual.is_contiguous():
            return super().norm(x, norm, residual)
        out = residual
        if out is None:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        block = triton.next_power_of_2(size)
        warps = min(max(block // 512, 1), 16)
        norm_rows[(n,)](
            x, norm.weight, out, size, x.stride(0), norm.eps, residual is not None, block,
            num_warps=warps, **self._how,
        )  # fmt: skip
        return out

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        by_torch = partial(super().project, x, weight, bias, norm=norm, residual=residual)
        if not is_row(x, weight, residual):
            return by_torch()
        by_kernel = partial(self._row, x, weight, bias, norm, residual)
        what = f"products of a row, {weight.shape[0]} x {weight.shape[1]}"
        return self.tried(what, by_kernel, by_torch)

    def project_each(self, x: Tensor, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        return torch.cat([
            self.project(row, weight, None if biases is None else biases[i])
            for i, (row, weight) in enumerate(zip(x.split(1), weights, strict=True))
        ])  # fmt: skip

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm, act: Act) -> Tensor:
        if act not in (silu, gelu_tanh):
            return super().gated(x, weight, bias, norm, act)
        by_torch = partial(self._product_gated, x, weight, bias, norm, act)
        if not is_row(x, weight):
            return by_torch()
        by_kernel = partial(self._row, x, weight, bias, norm, act=act)
        what = f"products of a row, 2 x {weight.shape[0] // 2} x {weight.shape[1]}"
        return self.tried(what, by_kernel, by_torch)

    def _row(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None,
        residual: Tensor | None = None, act: Act | None = None,
    ) -> Tensor:  # fmt: skip
        """A product of a row by the kernel, gated if an activation is given."""
        is_gated = act is not None
        num_out, rows = len(weight) // (1 + is_gated), ROWS[is_gated]
        out = x.new_empty(1, num_out) if residual is None else residual
        project_row[(triton.cdiv(num_out, rows),)](
            x, weight, _or(bias, x), x if norm is None else norm.weight, out, num_out, x.shape[1],
            0.0 if norm is None else norm.eps, HAS_BIAS=bias is not None,
            HAS_NORM=norm is not None, IS_ADDED=residual is not None, IS_GATED=is_gated,
            IS_GELU=act is gelu_tanh, ROWS=rows, BLOCK=ROW_BLOCK, **self._how,
        )  # fmt: skip
        return out

    def _product_gated(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm, act: Act
    ) -> Tensor:
        """A gated product by torch, its norm and gate by kernels."""
        both = linear(self.norm(x, norm), weight, bias)
        return self.tried("gates", partial(self._gate, both, act), partial(gated, both, act))

    def _gate(self, both: Tensor, act: Act) -> Tensor:
        n, inner = both.shape[0], both.shape[1] // 2
        out = both.new_empty(n, inner)
        grid, is_gelu = (n, triton.cdiv(inner, 1024)), act is gelu_tanh
        gate_rows[grid](both, out, inner, is_gelu, BLOCK=1024, **self._how)
        return out

    @or_torch("experts")
    def experts(self, x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
        is_dense = all(part.is_contiguous() for part in (x, experts.gate_up, experts.down))
        most = MOST_PAIRS if has_grouped(x) else max(MOST_PAIRS, len(experts.down))
        if act is not silu or ids.numel() > most or not is_dense:
            return super().experts(x, experts, ids, shares, act)
        k, hidden, inner = ids.shape[1], x.shape[1], experts.down.shape[2]
        ids, shares = ids.contiguous(), shares.contiguous()
        clamp, has_bias = experts.clamp, experts.gate_up_bias is not None
        alpha, limit = (clamp.alpha, clamp.limit) if clamp else (0.0, 0.0)
        acts, found = x.new_empty(ids.numel(), inner), x.new_empty(ids.numel(), hidden)
        project_experts[(triton.cdiv(inner, EXPERT_ROWS), ids.numel())](
            x, experts.gate_up, _or(experts.gate_up_bias, x), ids, shares, acts, inner, hidden, k,
            alpha, limit, IS_GATED=True, IS_CLAMPED=clamp is not None, HAS_BIAS=has_bias,
            HAS_SHARES=False, ROWS=EXPERT_ROWS, BLOCK=EXPERT_BLOCK, **self._how,
        )  # fmt: skip
        project_experts[(triton.cdiv(hidden, EXPERT_ROWS), ids.numel())](
            acts, experts.down, _or(experts.down_bias, x), ids, shares, found, hidden, inner, 1,
            alpha, limit, IS_GATED=False, IS_CLAMPED=False, HAS_BIAS=has_bias,
            HAS_SHARES=True, ROWS=EXPERT_ROWS, BLOCK=EXPERT_BLOCK, **self._how,
        )  # fmt: skip
        return found.unflatten(0, ids.shape).sum(1)

    @or_torch("most likely tokens")
    def topk_logprobs(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        n, vocab_size = logits.shape
        if k > MAX_TOPK or logits.itemsize > 4:
            return super().topk_logprobs(logits, k)
        num_chunks = triton.cdiv(vocab_size, CHUNK)
        best = logits.new_empty(n, num_chunks, k, dtype=torch.float32)
        ids = torch.empty_like(best, dtype=torch.int32)
        tops, totals = (best.new_empty(n, num_chunks) for _ in range(2))
        topk_of_chunk[(n, num_chunks)](
            logits, best, ids, tops, totals, vocab_size, logits.stride(0), k, CHUNK, **self._how
        )
        log_probs, chosen = best.new_empty(n, k), ids.new_empty(n, k, dtype=torch.long)
        topk_of_row[(n,)](
            best, ids, tops, totals, log_probs, chosen, num_chunks, k,
            triton.next_power_of_2(num_chunks), triton.next_power_of_2(num_chunks * k), **self._how,
        )  # fmt: skip
        return log_probs, chosen

    def topk_ids(self, logits: Tensor, k: int) -> Tensor:
        return self.topk_logprobs(logits, k)[1]

    @or_torch("largest candidates")
    def topk(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if len(values) > MOST_FEW or values.dtype != torch.float64:
            return super().topk(values, k)
        best, places = values.new_empty(k), values.new_empty(k, dtype=torch.long)
        block = triton.next_power_of_2(len(values))
        topk_of_few[(1,)](values, best, places, len(values), k, block, **self._how)
        return best, places

    @or_torch("rotary embeddings")
    def write_kv(
        self, qkv: Tensor, cached: CacheRows, slots: CacheSlots, heads: Heads,
        norm: HeadNorm | None = None,
    ) -> None:  # fmt: skip
        num_queries, rows, cos_sin = heads.num_kv * heads.group, cached.all, slots.cos_sin
        grid = (qkv.shape[0], num_queries + 2 * heads.num_kv)
        rotate_and_write_kv[grid](
            qkv, rows, slots.rows, cos_sin, qkv if norm is None else norm.weight, qkv.stride(0),
            rows.stride(0), cos_sin.stride(0) if cos_sin.shape[0] > 1 else 0, num_queries,
            heads.num_kv, 0.0 if norm is None else norm.eps, norm is not None, heads.dim,
            triton.next_power_of_2(heads.dim), num_warps=1, **self._how,
        )  # fmt: skip

    @or_torch("attention")
    def attend(
        self, queries: Tensor, cached: CacheRows, tree_mask: TreeMask | None, heads: Heads,
        scoring: Scoring = PLAIN, window: int | None = None,
    ) -> Tensor:  # fmt: skip
        dim, rows, num_heads = heads.dim, cached.all, heads.num_kv * heads.group
        has_kernel = dim >= 16 and not dim & (dim - 1) and dim * queries.itemsize <= WIDEST_KEY
        if tree_mask is None or not has_kernel:
            return super().attend(queries, cached, tree_mask, heads, scoring, window)
        tree_mask = tree_mask.within(window)
        n, num_more = tree_mask.bias.shape
        span, begins, sinks = tree_mask.num_rows, tree_mask.begins, scoring.sinks
        if begins is not None:
            assert window is not None
            span = min(span, window + num_more)
        plan = plan_attention(
            self._num_processors,
            heads,
            num_rows=n,
            span=span,
            itemsize=queries.itemsize,
            has_window=begins is not None,
        )
        num_splits, num_places = plan.num_splits, n * num_heads
        parts = queries.new_empty(num_splits, num_places, dim, dtype=torch.float32)
        tops, totals = (parts.new_empty(num_splits, num_places) for _ in range(2))
        attend_split[(heads.num_kv, plan.num_blocks, num_splits)](
            queries, rows, tree_mask.bias.contiguous(), tree_mask.start,
            tree_mask.start if begins is None else begins, parts, tops, totals, n, num_more,
            heads.group, queries.stride(0), rows.stride(0), heads.kv_width,
            scoring.scale_of(dim), scoring.soft_cap or 0.0,
            begins is not None, scoring.soft_cap is not None, dim, plan.block_rows,
            CACHE_ROWS, **TILES[plan.block_rows], **self._how,
        )  # fmt: skip
        out = queries.new_empty(n, heads.query_width)
        width = triton.next_power_of_2(num_splits)
        join_splits[(num_places,)](
            parts, tops, totals, tops if sinks is None else sinks, out, num_places, num_splits,
            num_heads, sinks is not None, dim, width,
            num_warps=max(width * dim // 2048, 1), **self._how,
        )  # fmt: skip
        return out


def is_row(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> bool:
    """True for a single row of which all is contiguous and the weight aligned, for the kernel."""
    whole = [part for part in (weight, residual) if part is not None]
    is_dense = x.stride(1) == 1 and all(part.is_contiguous() for part in whole)
    return len(x) == 1 and is_dense and weight.data_ptr() % 16 == 0


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """`tensor`, or `other` as a pointer that the kernel never reads."""
    return other if tensor is None else tensor
