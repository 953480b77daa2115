"""Launch the kernels for linear layers that `kernels.products` chose."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
from torch import Tensor

from specbench.engine.kernels.products import Kernel, LinearCall, Product
from specbench.engine.kernels.triton_experts import project_experts
from specbench.engine.kernels.triton_few import project_few
from specbench.engine.kernels.triton_kernels import project_row
from specbench.engine.kernels.triton_plan import Cut, cut
from specbench.engine.layers.experts import Experts

ROW_BLOCK = 1024
"""Numbers of a weight's row that a program for a single row reads at a time.

It determines the order of the sums.
"""
FEW_BLOCK = 64
"""The same for few rows: a line of the cache."""
FEW_STAGES = 4
"""Buffers of weights in shared memory."""
FEW_OPTIONS = {"num_warps": 4, "maxnreg": 192}
"""By default, the compiler for compute capability 10.0 spills to stay within 64 registers."""
EXPERT_ROWS, EXPERT_BLOCK = 4, 512
"""Rows of an expert's weight per program, and numbers of a row that it reads at a time."""
MOST_PAIRS = 64
"""Largest number of rows times experts per row; above, a grouped product reads a weight once.

Without one, the limit is the number of experts: all together read each weight once, too.
"""
MOST_TILES = 1 << 15
START, SHARE = 2, 2
"""Time of a program for few rows besides its steps, in steps: to fill its pipeline, and to
store and gather sums. These are estimates: a step is a microsecond or less.
"""


class Products:
    """Launches on a device with `num_processors` processors.

    All launches share the memory in which splits of a product count their arrivals, so
    launches must not overlap: use one stream.
    """

    def __init__(self, num_processors: int, how: Mapping[str, bool]) -> None:
        self._num_processors = num_processors
        self._how = how
        self._arrivals: dict[torch.device, Tensor] = {}

    def row(self, call: LinearCall, launch: Kernel) -> Tensor:
        """Result [1, output] of a call with a single row."""
        num_out, norm = _num_out(call), call.norm
        out = call.x.new_empty(1, num_out) if call.residual is None else call.residual
        project_row[(triton.cdiv(num_out, launch.rows),)](
            call.x, call.weight, _or(call.bias, call.x), call.x if norm is None else norm.weight,
            out, num_out, call.x.shape[1], 0.0 if norm is None else norm.eps,
            HAS_BIAS=call.bias is not None, HAS_NORM=norm is not None,
            IS_ADDED=call.residual is not None, IS_GATED=call.is_gated, IS_GELU=call.is_gelu,
            ROWS=launch.rows, BLOCK=ROW_BLOCK, **self._how,
        )  # fmt: skip
        return out

    def few(self, call: LinearCall, launch: Kernel) -> Tensor:
        """Result [n, output] of a call without a norm, n up to 64."""
        x, num_out, product = call.x, _num_out(call), call.product
        assert product is not None and call.norm is None
        rows, tokens = launch.rows, max(product.num_rows, 16)
        plan, tiles = self.plan(product, launch), _tiles(product, launch)
        out = x.new_empty(x.shape[0], num_out) if call.residual is None else call.residual
        sums, arrivals = x.new_empty(0, dtype=torch.float32), self._arrivals_on(x.device)
        if plan.num_splits > 1:
            sums = sums.new_empty(tiles * plan.num_splits * rows * tokens)
        project_few[(tiles, plan.num_splits)](
            x, call.weight, _or(call.bias, x), out, sums, arrivals, x.shape[0], num_out,
            product.size, FEW_BLOCK * plan.num_steps, x.stride(0), HAS_BIAS=call.bias is not None,
            IS_ADDED=call.residual is not None, IS_GATED=call.is_gated, IS_GELU=call.is_gelu,
            IS_SPLIT=plan.num_splits > 1, TOKENS=tokens, ROWS=rows, BLOCK=FEW_BLOCK,
            STAGES=FEW_STAGES, **FEW_OPTIONS, **self._how,
        )  # fmt: skip
        return out

    def experts(self, x: Tensor, experts: Experts, ids: Tensor, shares: Tensor) -> Tensor:
        """Sum [n, hidden] of the outputs of experts `ids` [n, k] for x, times `shares` [n, k]."""
        k, hidden, inner = ids.shape[1], x.shape[1], experts.down.shape[2]
        ids, shares = ids.contiguous(), shares.contiguous()
        clamp, has_bias = experts.clamp, experts.gate_up_bias is not None
        alpha, limit = (clamp.alpha, clamp.limit) if clamp else (0.0, 0.0)
        gated, found = x.new_empty(ids.numel(), inner), x.new_empty(ids.numel(), hidden)
        project_experts[(triton.cdiv(inner, EXPERT_ROWS), ids.numel())](
            x, experts.gate_up, _or(experts.gate_up_bias, x), ids, shares, gated, inner, hidden, k,
            alpha, limit, IS_GATED=True, IS_CLAMPED=clamp is not None, HAS_BIAS=has_bias,
            HAS_SHARES=False, ROWS=EXPERT_ROWS, BLOCK=EXPERT_BLOCK, **self._how,
        )  # fmt: skip
        project_experts[(triton.cdiv(hidden, EXPERT_ROWS), ids.numel())](
            gated, experts.down, _or(experts.down_bias, x), ids, shares, found, hidden, inner, 1,
            alpha, limit, IS_GATED=False, IS_CLAMPED=False, HAS_BIAS=has_bias,
            HAS_SHARES=True, ROWS=EXPERT_ROWS, BLOCK=EXPERT_BLOCK, **self._how,
        )  # fmt: skip
        return found.unflatten(0, ids.shape).sum(1)

    def plan(self, product: Product, launch: Kernel) -> Cut:
        """Split of a product's input size for this number of processors."""
        steps = triton.cdiv(product.size, FEW_BLOCK)
        programs = _tiles(product, launch)
        return cut(steps, programs, self._num_processors, start=START, share=SHARE)

    def _arrivals_on(self, device: torch.device) -> Tensor:
        if device not in self._arrivals:
            self._arrivals[device] = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)
        return self._arrivals[device]


def _tiles(product: Product, launch: Kernel) -> int:
    return triton.cdiv(product.num_out * (1 + product.is_gated), launch.rows)


def _num_out(call: LinearCall) -> int:
    return call.weight.shape[0] // (1 + call.is_gated)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """`tensor`, or `other` as a pointer that the kernel never reads."""
    return other if tensor is None else tensor
