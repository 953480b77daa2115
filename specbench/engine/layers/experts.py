"""Products with the experts of a mixture, by torch's own operations.

On a GPU no value reaches the host, so a call can be captured. One grouped product multiplies the
rows of all experts. If torch has no grouped product, or if it waits for the GPU, every expert
multiplies all rows. If there are few pairs of a row and an expert, it is faster to copy the weights
of each pair.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from specbench.engine.layers.emulated import product

Act: TypeAlias = Callable[[Tensor], Tensor]
GROUPED_MM = getattr(nn.functional, "grouped_mm", None)
"""Torch's product of groups of rows with a weight for each group. None before torch 2.10."""
LEAST_CAPABILITY = (9, 0)
"""Below this compute capability, `GROUPED_MM` copies the groups' sizes to the host, and waits."""
CHUNK_BYTES = 2**28
"""Largest number of bytes of the experts' results if every expert multiplies all rows."""


@dataclass(frozen=True, slots=True)
class Clamp:
    """The gated activation of gpt-oss: (up + 1) * gate * sigmoid(alpha * gate).

    `limit` clamps the gate from above, and up on both sides.
    """

    alpha: float
    limit: float

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate = gate.clamp(max=self.limit)
        up = up.clamp(-self.limit, self.limit)
        return torch.sigmoid(gate * self.alpha).mul_(gate).mul_(up + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Weights of a layer's experts. An expert computes down(act(gate(x)) * up(x)).

    With `clamp`, rows of gate and up alternate, and there are biases (gpt-oss).
    """

    gate_up: Tensor  # [experts, 2 * inner, hidden], gate first
    down: Tensor  # [experts, hidden, inner]
    gate_up_bias: Tensor | None = None  # [experts, 2 * inner]
    down_bias: Tensor | None = None  # [experts, hidden]
    clamp: Clamp | None = None

    def gated(self, gate_up: Tensor, act: Act) -> Tensor:
        """act(gate) * up [..., inner]. The rows [..., 2 * inner] hold both."""
        if self.clamp is not None:
            return self.clamp(gate_up[..., ::2], gate_up[..., 1::2])
        return gated(gate_up, act)


def gated(gate_up: Tensor, act: Act) -> Tensor:
    """act(gate) * up [..., inner]. The rows of `gate_up` [..., 2 * inner] are [gate ; up]."""
    gate, up = gate_up.chunk(2, -1)
    return act(gate).mul_(up)


def mix(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """The outputs of k experts for each row of x [n, hidden], summed with weights.

    Row i uses the experts `ids[i]` [k] with the weights `shares[i]` [k]. Returns [n, hidden].
    """
    if x.device.type == "cpu":
        return _one_by_one(x, experts, ids, shares, act)
    if has_grouped(x):
        return _grouped(x, experts, ids, shares, act)
    num_pairs = ids.numel()
    num_experts = len(experts.down)
    if 3 * num_pairs <= num_experts:  # a copied weight is read, written, and read again
        return _gathered(x, experts, ids, shares, act)
    return _by_all(x, experts, ids, shares, act)


def has_grouped(x: Tensor) -> bool:
    """True if torch multiplies groups of rows of x without waiting for the GPU."""
    is_supported = x.dtype == torch.bfloat16 and x.device.type == "cuda"
    if GROUPED_MM is None or not is_supported:
        return False
    return torch.cuda.get_device_capability(x.device) >= LEAST_CAPABILITY


def _one_by_one(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """`mix` that reads only the weights of chosen experts. The host reads the ids."""
    out = torch.zeros_like(x)
    for expert in ids.unique().tolist():
        rows, choices = torch.where(ids == expert)  # [m] rows that chose it, and their places
        gate_up_bias = _bias(experts.gate_up_bias, expert)
        gate_up = product(x[rows], experts.gate_up[expert], gate_up_bias)  # [m, 2 * inner]
        inner = experts.gated(gate_up, act)  # [m, inner]
        down_bias = _bias(experts.down_bias, expert)
        outputs = product(inner, experts.down[expert], down_bias)  # [m, hidden]
        factors = shares[rows, choices, None]  # [m, 1]
        out.index_add_(0, rows, outputs.mul_(factors))
    return out


def _grouped(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """`mix` with one product for all pairs of a row and an expert, sorted by expert."""
    assert GROUPED_MM is not None
    chosen, order = ids.flatten().sort()  # [n * k] experts, and the pairs that chose them
    all_experts = torch.arange(len(experts.down), device=x.device)
    # [experts] where the pairs of each expert end
    ends = torch.searchsorted(chosen, all_experts, right=True).to(torch.int32)
    k = ids.shape[1]
    rows = x[order // k]  # [n * k, hidden]
    gate_up = GROUPED_MM(rows, experts.gate_up.mT, offs=ends)  # [n * k, 2 * inner]
    gate_up = _added(gate_up, experts.gate_up_bias, chosen)
    inner = experts.gated(gate_up, act)
    outputs = GROUPED_MM(inner, experts.down.mT, offs=ends)  # [n * k, hidden]
    outputs = _added(outputs, experts.down_bias, chosen)
    by_pair = torch.empty_like(outputs)  # in the order of `ids`
    by_pair[order] = outputs
    return _sum(by_pair, shares)


def _gathered(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """`mix` for few pairs of a row and an expert. Each pair copies the weights of its expert."""
    chosen = ids.flatten()  # [n * k]
    k = ids.shape[1]
    columns = x.repeat_interleave(k, 0)[:, :, None]  # [n * k, hidden, 1]
    gate_up = torch.bmm(experts.gate_up[chosen], columns)[:, :, 0]  # [n * k, 2 * inner]
    gate_up = _added(gate_up, experts.gate_up_bias, chosen)
    inner_columns = experts.gated(gate_up, act)[:, :, None]  # [n * k, inner, 1]
    outputs = torch.bmm(experts.down[chosen], inner_columns)[:, :, 0]  # [n * k, hidden]
    outputs = _added(outputs, experts.down_bias, chosen)
    return _sum(outputs, shares)


def _by_all(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor, act: Act) -> Tensor:
    """`mix` in which every expert multiplies all rows, a few at a time. No weights are copied."""
    num_experts, hidden, inner = experts.down.shape
    bytes_per_row = num_experts * (2 * inner + hidden) * x.itemsize
    num_rows = max(CHUNK_BYTES // bytes_per_row, 1)
    no_shares = shares.new_zeros(x.shape[0], num_experts)
    all_shares = no_shares.scatter_(1, ids, shares)  # [n, experts], 0 if not chosen
    row_chunks = x.split(num_rows)
    share_chunks = all_shares.split(num_rows)
    sums = []
    for rows, row_shares in zip(row_chunks, share_chunks, strict=True):
        gate_up = torch.matmul(rows, experts.gate_up.mT)  # [experts, rows, 2 * inner]
        if experts.gate_up_bias is not None:
            gate_up += experts.gate_up_bias[:, None]
        # gated [experts, rows, inner size] -> outputs [experts, rows, hidden]
        outputs = torch.matmul(experts.gated(gate_up, act), experts.down.mT)
        if experts.down_bias is not None:
            outputs += experts.down_bias[:, None]
        factors = row_shares.T[..., None]  # [experts, rows, 1]
        outputs.mul_(factors)
        outputs.masked_fill_(factors == 0, 0)  # an expert that was not chosen may overflow
        sums.append(outputs.sum(0))
    return torch.cat(sums)


def _bias(biases: Tensor | None, expert: int) -> Tensor | None:
    """The bias of an expert, or None if there are no biases."""
    return None if biases is None else biases[expert]


def _added(rows: Tensor, biases: Tensor | None, chosen: Tensor) -> Tensor:
    """Add the biases of the experts `chosen` [n] to rows [n, width], if there are biases."""
    return rows if biases is None else rows.add_(biases[chosen])


def _sum(outputs: Tensor, shares: Tensor) -> Tensor:
    """The sum [n, hidden] of outputs [n * k, hidden], weighted by shares [n, k]."""
    by_row = outputs.unflatten(0, shares.shape)  # [n, k, hidden]
    return by_row.mul_(shares[..., None]).sum(1)
