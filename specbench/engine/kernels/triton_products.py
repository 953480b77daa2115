"""Launch the kernels for linear layers that `kernels.products` chose, and for experts."""

from __future__ import annotations

from collections.abc import Mapping

import triton
from torch import Tensor

from specbench.engine.kernels.products import Kernel, LinearCall
from specbench.engine.kernels.triton_experts import project_experts
from specbench.engine.kernels.triton_kernels import project_row
from specbench.engine.layers.experts import Experts

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


def run_row(call: LinearCall, launch: Kernel, how: Mapping[str, bool]) -> Tensor:
    """Result [1, output] of a call with a single row; `how` are options of every kernel."""
    num_out, norm = call.weight.shape[0] // (1 + call.is_gated), call.norm
    out = call.x.new_empty(1, num_out) if call.residual is None else call.residual
    project_row[(triton.cdiv(num_out, launch.rows),)](
        call.x, call.weight, _or(call.bias, call.x), call.x if norm is None else norm.weight,
        out, num_out, call.x.shape[1], 0.0 if norm is None else norm.eps,
        HAS_BIAS=call.bias is not None, HAS_NORM=norm is not None,
        IS_ADDED=call.residual is not None, IS_GATED=call.is_gated, IS_GELU=call.is_gelu,
        ROWS=launch.rows, BLOCK=ROW_BLOCK, **how,
    )  # fmt: skip
    return out


def run_experts(
    x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, how: Mapping[str, bool]
) -> Tensor:
    """Sum [n, hidden] of the outputs of experts `ids` [n, k] for x, times `shares` [n, k]."""
    k, hidden, inner = ids.shape[1], x.shape[1], experts.down.shape[2]
    ids, shares = ids.contiguous(), shares.contiguous()
    clamp, has_bias = experts.clamp, experts.gate_up_bias is not None
    alpha, limit = (clamp.alpha, clamp.limit) if clamp else (0.0, 0.0)
    gated, found = x.new_empty(ids.numel(), inner), x.new_empty(ids.numel(), hidden)
    project_experts[(triton.cdiv(inner, EXPERT_ROWS), ids.numel())](
        x, experts.gate_up, _or(experts.gate_up_bias, x), ids, shares, gated, inner, hidden, k,
        alpha, limit, IS_GATED=True, IS_CLAMPED=clamp is not None, HAS_BIAS=has_bias,
        HAS_SHARES=False, ROWS=EXPERT_ROWS, BLOCK=EXPERT_BLOCK, **how,
    )  # fmt: skip
    project_experts[(triton.cdiv(hidden, EXPERT_ROWS), ids.numel())](
        gated, experts.down, _or(experts.down_bias, x), ids, shares, found, hidden, inner, 1,
        alpha, limit, IS_GATED=False, IS_CLAMPED=False, HAS_BIAS=has_bias,
        HAS_SHARES=True, ROWS=EXPERT_ROWS, BLOCK=EXPERT_BLOCK, **how,
    )  # fmt: skip
    return found.unflatten(0, ids.shape).sum(1)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """`tensor`, or `other` as a pointer that the kernel never reads."""
    return other if tensor is None else tensor
