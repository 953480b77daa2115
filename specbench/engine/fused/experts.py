"""Products with the experts of a mixture, by torch's own operations.

On a GPU no value reaches the host, so a call can be captured: the rows of each expert are
multiplied in one grouped product, or with a copy of its weights where torch has no such product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Act = Callable[[Tensor], Tensor]
GROUPED_MM = getattr(nn.functional, "grouped_mm", None)
"""Torch's product of groups of rows with a weight each; None before torch 2.10."""


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Weights of the experts of a layer. An expert is down(act(gate(x)) * up(x))."""

    gate_up: Tensor  # [experts, 2 * inner, hidden], gate first
    down: Tensor  # [experts, hidden, inner]


def mix(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """Sum [n, hidden] of the outputs of experts `ids` [n, k] for x [n, hidden], times `shares`."""
    if x.device.type == "cpu":
        return _one_by_one(x, experts, ids, shares, act)
    if GROUPED_MM is not None and x.dtype == torch.bfloat16:
        return _grouped(x, experts, ids, shares, act)
    return _gathered(x, experts, ids, shares, act)


def _one_by_one(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """Only the weights of chosen experts are read. The ids are read on the host."""
    out = torch.zeros_like(x)
    for expert in ids.unique().tolist():
        rows, places = torch.where(ids == expert)
        gate, up = linear(x[rows], experts.gate_up[expert]).chunk(2, -1)
        found = linear(act(gate).mul_(up), experts.down[expert])
        out.index_add_(0, rows, found.mul_(shares[rows, places, None]))
    return out


def _grouped(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    assert GROUPED_MM is not None
    chosen, order = ids.flatten().sort()
    numbers = torch.arange(len(experts.down), device=x.device)
    ends = torch.searchsorted(chosen, numbers, right=True).to(torch.int32)
    gate, up = GROUPED_MM(x[order // ids.shape[1]], experts.gate_up.mT, offs=ends).chunk(2, -1)
    found = GROUPED_MM(act(gate).mul_(up), experts.down.mT, offs=ends)
    out = torch.empty_like(found)
    out[order] = found
    return _sum(out, shares)


def _gathered(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    chosen = ids.flatten()
    rows = x.repeat_interleave(ids.shape[1], 0)[:, :, None]
    gate, up = torch.bmm(experts.gate_up[chosen], rows).chunk(2, 1)
    return _sum(torch.bmm(experts.down[chosen], act(gate).mul_(up))[:, :, 0], shares)


def _sum(found: Tensor, shares: Tensor) -> Tensor:
    """Weighted sum [n, hidden] of outputs [n * k, hidden], by shares [n, k]."""
    return found.unflatten(0, shares.shape).mul_(shares[..., None]).sum(1)
