"""Products with the experts of a mixture, by torch's own operations.

On a GPU no value reaches the host, so a call can be captured: the rows of each expert are
multiplied in one grouped product. Where torch lacks that, or waits in it, every expert
multiplies all rows, unless the pairs of row and expert are so few that copies of weights are
faster.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from specbench.engine.layers.emulated import product

Act: TypeAlias = Callable[[Tensor], Tensor]
GROUPED_MM = getattr(nn.functional, "grouped_mm", None)
"""Torch's product of groups of rows with a weight each; None before torch 2.10."""
LEAST_CAPABILITY = (9, 0)
"""Below this compute capability, it copies the groups' sizes to the host, and waits."""
CHUNK_BYTES = 2**28
"""Most bytes of results, before they are summed, of experts that multiply all rows."""


@dataclass(frozen=True, slots=True)
class Clamp:
    """Gated activation of gpt-oss: (up + 1) * gate * sigmoid(alpha * gate), both clamped."""

    alpha: float
    limit: float

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return torch.sigmoid(gate * self.alpha).mul_(gate).mul_(up + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Weights of the experts of a layer. An expert is down(act(gate(x)) * up(x)).

    With `clamp`, rows of gate and up alternate, and there are biases (gpt-oss).
    """

    gate_up: Tensor  # [experts, 2 * inner, hidden], gate first
    down: Tensor  # [experts, hidden, inner]
    gate_up_bias: Tensor | None = None  # [experts, 2 * inner]
    down_bias: Tensor | None = None  # [experts, hidden]
    clamp: Clamp | None = None

    def joined(self, both: Tensor, act: Act) -> Tensor:
        """act(gate) * up [..., inner] of rows [..., 2 * inner] of both."""
        if self.clamp is not None:
            return self.clamp(both[..., ::2], both[..., 1::2])
        return gated(both, act)


def gated(both: Tensor, act: Act) -> Tensor:
    """act(gate) * up [..., inner] of rows [..., 2 * inner] of both, gate first."""
    gate, up = both.chunk(2, -1)
    return act(gate).mul_(up)


def mix(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """Sum [n, hidden] of the outputs of experts `ids` [n, k] for x [n, hidden], times `shares`."""
    if x.device.type == "cpu":
        return _one_by_one(x, experts, ids, shares, act)
    if has_grouped(x):
        return _grouped(x, experts, ids, shares, act)
    if 3 * ids.numel() <= len(experts.down):  # a copy is read, written, and read again
        return _gathered(x, experts, ids, shares, act)
    return _by_all(x, experts, ids, shares, act)


def has_grouped(x: Tensor) -> bool:
    """True if torch multiplies groups of rows of x without waiting for the GPU."""
    if GROUPED_MM is None or x.dtype != torch.bfloat16 or x.device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(x.device) >= LEAST_CAPABILITY


def _one_by_one(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """Only the weights of chosen experts are read. The ids are read on the host."""
    out = torch.zeros_like(x)
    for expert in ids.unique().tolist():
        rows, places = torch.where(ids == expert)
        both = product(x[rows], experts.gate_up[expert], _bias(experts.gate_up_bias, expert))
        inner = experts.joined(both, act)
        found = product(inner, experts.down[expert], _bias(experts.down_bias, expert))
        out.index_add_(0, rows, found.mul_(shares[rows, places, None]))
    return out


def _grouped(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    assert GROUPED_MM is not None
    chosen, order = ids.flatten().sort()
    numbers = torch.arange(len(experts.down), device=x.device)
    ends = torch.searchsorted(chosen, numbers, right=True).to(torch.int32)
    both = GROUPED_MM(x[order // ids.shape[1]], experts.gate_up.mT, offs=ends)
    inner = experts.joined(_added(both, experts.gate_up_bias, chosen), act)
    found = _added(GROUPED_MM(inner, experts.down.mT, offs=ends), experts.down_bias, chosen)
    out = torch.empty_like(found)
    out[order] = found
    return _sum(out, shares)


def _gathered(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    chosen = ids.flatten()
    rows = x.repeat_interleave(ids.shape[1], 0)[:, :, None]
    both = torch.bmm(experts.gate_up[chosen], rows)[:, :, 0]
    inner = experts.joined(_added(both, experts.gate_up_bias, chosen), act)
    found = torch.bmm(experts.down[chosen], inner[:, :, None])[:, :, 0]
    return _sum(_added(found, experts.down_bias, chosen), shares)


def _by_all(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """Every expert multiplies all rows, some at a time: weights are read, and never copied."""
    num_experts, hidden, inner = experts.down.shape
    count = max(CHUNK_BYTES // (num_experts * (2 * inner + hidden) * x.itemsize), 1)
    of_all = shares.new_zeros(x.shape[0], num_experts).scatter_(1, ids, shares)
    sums = []
    for rows, part in zip(x.split(count), of_all.split(count), strict=True):
        both = torch.matmul(rows, experts.gate_up.mT)  # [experts, rows, 2 * inner]
        if experts.gate_up_bias is not None:
            both += experts.gate_up_bias[:, None]
        found = torch.matmul(experts.joined(both, act), experts.down.mT)
        if experts.down_bias is not None:
            found += experts.down_bias[:, None]
        each = part.T[..., None]  # an expert that was not chosen may overflow
        sums.append(found.mul_(each).masked_fill_(each == 0, 0).sum(0))
    return torch.cat(sums)


def _bias(biases: Tensor | None, expert: int) -> Tensor | None:
    return None if biases is None else biases[expert]


def _added(rows: Tensor, biases: Tensor | None, chosen: Tensor) -> Tensor:
    """Rows [n, width] with the biases of their experts `chosen` [n]."""
    return rows if biases is None else rows.add_(biases[chosen])


def _sum(found: Tensor, shares: Tensor) -> Tensor:
    """Weighted sum [n, hidden] of outputs [n * k, hidden], by shares [n, k]."""
    return found.unflatten(0, shares.shape).mul_(shares[..., None]).sum(1)
