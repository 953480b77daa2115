"""The operations of a decoder layer as Triton kernels, for decoding on a GPU.

A captured layer of torch's own operations has about 35 small kernels. Here it has seven for a
single row, where each product includes its norm, activation or residual in one pass over the
weights. A tree takes seven to ten, and cuBLAS computes its products. A tree's attention reads only
the mask of the tree's own nodes.

A kernel rounds once; torch's operations round several times. cuBLAS computes the products of
several rows, because our own kernel was at most 0.6 % faster for 16 to 64 rows, in Vicuna-13B's
layers on an H100 (docs/decisions.md).

If Triton cannot compile or launch a kernel, torch's operation replaces it. The start-up check tries
each kernel at a few shapes. A failure at a later shape, such as a wider head, must not end the run.
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
from specbench.engine.kernels.triton_drafts import launch_beam, launch_pairs, launch_topk
from specbench.engine.kernels.triton_experts import project_experts
from specbench.engine.kernels.triton_kernels import (
    gate_rows,
    norm_rows,
    project_row,
    rotate_and_write_kv,
)
from specbench.engine.kernels.triton_plan import CACHE_ROWS, WIDEST_KEY, plan_attention
from specbench.engine.kernels.triton_topk import topk_of_few
from specbench.engine.layers.experts import Act, Experts, gated, has_grouped
from specbench.engine.layers.operands import (
    Beam,
    CacheRows,
    CacheSlots,
    HeadNorm,
    Heads,
    Norm,
    PairNorms,
    TreeMask,
)
from specbench.engine.layers.ops import Ops, gelu_tanh
from specbench.engine.layers.torch_attention import PLAIN, Scoring
from specbench.errors import reason_of

T = TypeVar("T")
OperationT = TypeVar("OperationT", bound=Callable[..., Any])

TRITONS = ("Triton Error", "PassManager::run failed")
"""Beginnings of messages of Triton's driver and compiler that are not `TritonError`s."""


def or_torch(label: str) -> Callable[[OperationT], OperationT]:
    """A decorator that runs the operation of `Ops` if Triton cannot launch the kernel.

    `label` names the operation in `Ops.fallbacks`.
    """

    def guard(with_kernels: Any) -> Any:
        in_torch = getattr(Ops, with_kernels.__name__)

        @wraps(with_kernels)
        def run(self: TritonOps, *args: Any, **named: Any) -> Any:
            by_kernel = partial(with_kernels, self, *args, **named)
            return self.tried(label, by_kernel, partial(in_torch, self, *args, **named))

        return run

    return guard


ROWS = {False: 4, True: 2}
"""True for a gated product -> weight rows that a program reads for a single row of x.

The order of additions does not depend on these numbers, so results are bitwise equal. The
candidates were 1, 2 and 4. On an H100, a chain took at most 0.4 % longer with these numbers than
with the fastest, for any product of Vicuna-13B's layers and of a layer of width 768
(results/recorded/h100-vicuna-13b).
"""
ROW_BLOCK = 1024
"""Elements of a weight's row that a program for a single row of x reads at a time.

It determines the order of the sums.
"""
EXPERT_ROWS = 4
"""Rows of an expert's weight per program."""
EXPERT_BLOCK = 512
"""Elements of a row of an expert's weight that a program reads at a time."""
GATE_BLOCK = 1024
"""Columns of a gate per program."""
MOST_PAIRS = 64
"""Largest number of pairs of a row and an expert for which the kernel runs.

With more pairs, torch's grouped product is faster, because it reads each weight only once. If torch
has no grouped product, the limit is at least the number of experts. With more pairs, torch then
multiplies all rows by every expert, which also reads each weight only once.
"""
MAX_TOPK = 32
"""Largest k for which the kernel finds the most likely tokens. Torch computes larger k."""
CHUNK = 1024
"""Logits per program."""
MOST_FEW = 4096
"""Largest number of values among which a single program finds the largest."""
LARGEST_MASK = 4096
"""Largest size of a beam's mask that a single program writes: nodes times the nodes they see."""
TILES = {
    16: {"num_warps": 4, "num_stages": 3},
    32: {"num_warps": 8, "num_stages": 2},
    64: {"num_warps": 8, "num_stages": 2},
}
"""Queries per program -> launch options of attention."""


class TritonOps(Ops):
    """Runs kernels in the cases that have a kernel, and torch's operations in all others.

    With `is_early`, each kernel begins while the previous kernel ends. This needs compute
    capability 9.0. If Triton cannot compile or launch an operation, torch runs it from then on,
    and `fallbacks` has the reason. Torch also runs the products of several rows.
    """

    def __init__(self, num_processors: int, *, is_early: bool = False) -> None:
        super().__init__()
        self.name = f"triton {triton.__version__}" + (", overlapped" if is_early else "")
        self._num_processors = num_processors
        self._launch: dict[str, bool] = {"EARLY": is_early}  # options of every kernel
        if is_early:
            self._launch["launch_pdl"] = True

    def tried(self, label: str, by_kernel: Callable[[], T], by_torch: Callable[[], T]) -> T:
        """Run kernels. If they fail, now or earlier, run torch and keep the reason in `fallbacks`.

        Triton raises its errors before the launch, so nothing has been written by then.
        """
        if label not in self.fallbacks:
            try:
                return by_kernel()
            except (TritonError, RuntimeError) as error:
                if not isinstance(error, TritonError) and not str(error).startswith(TRITONS):
                    raise
                self.fallbacks[label] = f"run by torch, since {reason_of(error)}"
        return by_torch()

    @or_torch("norms")
    def norm(self, x: Tensor, norm: Norm, residual: Tensor | None = None) -> Tensor:
        n, size = x.shape
        if residual is not None and not residual.is_contiguous():
            return super().norm(x, norm, residual)
        is_added = residual is not None
        out = residual
        if out is None:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        block = triton.next_power_of_2(size)
        num_warps = min(max(block // 512, 1), 16)
        norm_rows[(n,)](
            x, norm.weight, out, size, x.stride(0), norm.eps, is_added, block,
            num_warps=num_warps, **self._launch,
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
        label = f"products of a row, {weight.shape[0]} x {weight.shape[1]}"
        return self.tried(label, by_kernel, by_torch)

    def project_each(self, x: Tensor, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        rows = []
        for i, (row, weight) in enumerate(zip(x.split(1), weights, strict=True)):
            bias = None if biases is None else biases[i]
            rows.append(self.project(row, weight, bias))
        return torch.cat(rows)

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm, act: Act) -> Tensor:
        if act not in (silu, gelu_tanh):
            return super().gated(x, weight, bias, norm, act)
        by_torch = partial(self._product_gated, x, weight, bias, norm, act)
        if not is_row(x, weight):
            return by_torch()
        by_kernel = partial(self._row, x, weight, bias, norm, act=act)
        label = f"products of a row, 2 x {weight.shape[0] // 2} x {weight.shape[1]}"
        return self.tried(label, by_kernel, by_torch)

    def _row(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None,
        residual: Tensor | None = None, act: Act | None = None,
    ) -> Tensor:  # fmt: skip
        """Multiply a single row by the kernel. The product is gated if an activation is given."""
        is_gated = act is not None
        num_out = len(weight) // 2 if is_gated else len(weight)
        rows_per_program = ROWS[is_gated]
        out = x.new_empty(1, num_out) if residual is None else residual
        norm_weight, eps = (x, 0.0) if norm is None else (norm.weight, norm.eps)
        project_row[(triton.cdiv(num_out, rows_per_program),)](
            x, weight, _or(bias, x), norm_weight, out, num_out, x.shape[1], eps,
            HAS_BIAS=bias is not None, HAS_NORM=norm is not None, IS_ADDED=residual is not None,
            IS_GATED=is_gated, IS_GELU=act is gelu_tanh, ROWS=rows_per_program, BLOCK=ROW_BLOCK,
            **self._launch,
        )  # fmt: skip
        return out

    def _product_gated(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm, act: Act
    ) -> Tensor:
        """A gated product, which torch computes. Its norm and its gate are kernels."""
        gate_up = linear(self.norm(x, norm), weight, bias)
        by_kernel = partial(self._gate, gate_up, act)
        return self.tried("gates", by_kernel, partial(gated, gate_up, act))

    def _gate(self, gate_up: Tensor, act: Act) -> Tensor:
        """act(gate) * up [n, inner]. The rows of `gate_up` [n, 2 * inner] hold both."""
        n, width = gate_up.shape
        inner = width // 2
        out = gate_up.new_empty(n, inner)
        grid = (n, triton.cdiv(inner, GATE_BLOCK))
        gate_rows[grid](gate_up, out, inner, act is gelu_tanh, BLOCK=GATE_BLOCK, **self._launch)
        return out

    @or_torch("experts")
    def experts(self, x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
        gate_up, down, clamp = experts.gate_up, experts.down, experts.clamp
        is_dense = x.is_contiguous() and gate_up.is_contiguous() and down.is_contiguous()
        most_pairs = MOST_PAIRS if has_grouped(x) else max(MOST_PAIRS, len(down))
        num_pairs = ids.numel()
        if act is not silu or num_pairs > most_pairs or not is_dense:
            return super().experts(x, experts, ids, shares, act)
        k = ids.shape[1]
        hidden, inner = down.shape[1:]
        ids, shares = ids.contiguous(), shares.contiguous()
        has_bias = experts.gate_up_bias is not None
        alpha, limit = (clamp.alpha, clamp.limit) if clamp else (0.0, 0.0)
        acts = x.new_empty(num_pairs, inner)
        project_experts[(triton.cdiv(inner, EXPERT_ROWS), num_pairs)](
            x, gate_up, _or(experts.gate_up_bias, x), ids, shares, acts, inner, hidden, k,
            alpha, limit, IS_GATED=True, IS_CLAMPED=clamp is not None, HAS_BIAS=has_bias,
            HAS_SHARES=False, ROWS=EXPERT_ROWS, BLOCK=EXPERT_BLOCK, **self._launch,
        )  # fmt: skip
        outputs = x.new_empty(num_pairs, hidden)
        project_experts[(triton.cdiv(hidden, EXPERT_ROWS), num_pairs)](
            acts, down, _or(experts.down_bias, x), ids, shares, outputs, hidden, inner, 1,
            alpha, limit, IS_GATED=False, IS_CLAMPED=False, HAS_BIAS=has_bias,
            HAS_SHARES=True, ROWS=EXPERT_ROWS, BLOCK=EXPERT_BLOCK, **self._launch,
        )  # fmt: skip
        return outputs.unflatten(0, ids.shape).sum(1)

    @or_torch("most likely tokens")
    def topk_logprobs(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if k > MAX_TOPK or logits.itemsize > 4:
            return super().topk_logprobs(logits, k)
        return launch_topk(logits, k, None, None, CHUNK, self._launch)

    @or_torch("scores of candidates")
    def topk_scores(
        self, logits: Tensor, k: int, above: Tensor, token_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if k > MAX_TOPK or logits.itemsize > 4:
            return super().topk_scores(logits, k, above, token_ids)
        return launch_topk(logits, k, above, token_ids, CHUNK, self._launch)

    def topk_ids(self, logits: Tensor, k: int) -> Tensor:
        return self.topk_logprobs(logits, k)[1]

    @or_torch("largest candidates")
    def topk(self, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if len(values) > MOST_FEW or values.dtype != torch.float64:
            return super().topk(values, k)
        num_values = len(values)
        best = values.new_empty(k)
        indices = values.new_empty(k, dtype=torch.long)
        block = triton.next_power_of_2(num_values)
        topk_of_few[(1,)](values, best, indices, num_values, k, block, **self._launch)
        return best, indices

    @or_torch("levels of a tree")
    def beam(
        self, scores: Tensor, tokens: Tensor, mask: Tensor, sees_itself: Tensor, penalty: Tensor
    ) -> Beam:
        is_small = len(scores) <= MOST_FEW and mask.shape[1] * len(sees_itself) <= LARGEST_MASK
        if not is_small or scores.dtype != torch.float64:
            return super().beam(scores, tokens, mask, sees_itself, penalty)
        return launch_beam(scores, tokens, mask, sees_itself, penalty, self._launch)

    @or_torch("inputs of a draft")
    def pairs(
        self,
        table: Tensor,
        tokens: Tensor,
        hidden: Tensor,
        rows: Tensor | None = None,
        norms: PairNorms | None = None,
    ) -> tuple[Tensor, Tensor]:
        is_alike = table.dtype == hidden.dtype and table.shape[1] == hidden.shape[1]
        if not is_alike or not table.is_contiguous() or hidden.stride(1) != 1:
            return super().pairs(table, tokens, hidden, rows, norms)
        return launch_pairs(table, tokens, hidden, rows, norms, self._launch)

    @or_torch("rotary embeddings")
    def write_kv(
        self, qkv: Tensor, cached: CacheRows, slots: CacheSlots, heads: Heads,
        norm: HeadNorm | None = None,
    ) -> None:  # fmt: skip
        num_queries = heads.num_kv * heads.group
        rows, cos_sin = cached.all, slots.cos_sin
        cos_sin_stride = cos_sin.stride(0) if cos_sin.shape[0] > 1 else 0
        norm_weight, eps = (qkv, 0.0) if norm is None else (norm.weight, norm.eps)
        grid = (qkv.shape[0], num_queries + 2 * heads.num_kv)
        rotate_and_write_kv[grid](
            qkv, rows, slots.rows, cos_sin, norm_weight, qkv.stride(0), rows.stride(0),
            cos_sin_stride, num_queries, heads.num_kv, eps, norm is not None, heads.dim,
            triton.next_power_of_2(heads.dim), num_warps=1, **self._launch,
        )  # fmt: skip

    @or_torch("attention")
    def attend(
        self, queries: Tensor, cached: CacheRows, tree_mask: TreeMask | None, heads: Heads,
        scoring: Scoring = PLAIN, window: int | None = None,
    ) -> Tensor:  # fmt: skip
        dim, rows, num_heads = heads.dim, cached.all, heads.num_kv * heads.group
        is_power_of_2 = dim & (dim - 1) == 0
        has_kernel = dim >= 16 and is_power_of_2 and dim * queries.itemsize <= WIDEST_KEY
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
        num_splits = plan.num_splits
        num_queries = n * num_heads  # query heads of all rows
        # For each query and split: sum of weighted values, highest score and sum of weights.
        sums = queries.new_empty(num_splits, num_queries, dim, dtype=torch.float32)
        tops = sums.new_empty(num_splits, num_queries)
        totals = sums.new_empty(num_splits, num_queries)
        attend_split[(heads.num_kv, plan.num_blocks, num_splits)](
            queries, rows, tree_mask.bias.contiguous(), tree_mask.start,
            tree_mask.start if begins is None else begins, sums, tops, totals, n, num_more,
            heads.group, queries.stride(0), rows.stride(0), heads.kv_width,
            scoring.scale_of(dim), scoring.soft_cap or 0.0,
            begins is not None, scoring.soft_cap is not None, dim, plan.block_rows,
            CACHE_ROWS, **TILES[plan.block_rows], **self._launch,
        )  # fmt: skip
        out = queries.new_empty(n, heads.query_width)
        width = triton.next_power_of_2(num_splits)
        join_splits[(num_queries,)](
            sums, tops, totals, _or(sinks, tops), out, num_queries, num_splits, num_heads,
            sinks is not None, dim, width,
            num_warps=max(width * dim // 2048, 1), **self._launch,
        )  # fmt: skip
        return out


def is_row(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> bool:
    """True if the kernel for a single row can run on these tensors.

    All tensors must be contiguous, and the weight must be aligned.
    """
    if len(x) != 1 or x.stride(1) != 1 or not weight.is_contiguous():
        return False
    if residual is not None and not residual.is_contiguous():
        return False
    return weight.data_ptr() % 16 == 0


def _or(tensor: Tensor | None, unread: Tensor) -> Tensor:
    """`tensor` or, if it is None, `unread`: a pointer that the kernel never reads."""
    return unread if tensor is None else tensor
