"""The MLP of a decoder layer: dense, or a mixture of experts.

`layers.ops` does the arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from specbench.engine.layers.experts import Act, Experts
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import Ops
from specbench.engine.layers.weights import weight_bytes


class DenseMlp:
    """Computes down(act(gate(x)) * up(x)), where x is normed first. Gate and up become one matrix.

    If `post_norm` is given, it normalises the output (Gemma).
    """

    def __init__(
        self, gate: nn.Linear, up: nn.Linear, down: nn.Linear, norm: Norm, act: Act, ops: Ops,
        post_norm: Norm | None = None,
    ) -> None:  # fmt: skip
        self.weight, self.bias = join([gate, up])
        self.down, self.norm, self.act, self._ops = down, norm, act, ops
        self.post_norm = post_norm

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, including the norm before the MLP."""
        return weight_bytes(self.weight, self.bias, self.down, self.norm.weight)

    def __call__(self, hidden: Tensor) -> Tensor:
        ops = self._ops
        inner = ops.gated(hidden, self.weight, self.bias, self.norm, self.act)
        return project_onto(hidden, inner, self.down, self.post_norm, ops)


@dataclass(frozen=True, slots=True, eq=False)
class SparseMlp:
    """A mixture: each row uses its `top_k` most likely experts (Qwen3-MoE, Mixtral, gpt-oss).

    The router's softmax is in float32. If `is_normalised`, the shares of a row's experts sum to 1.
    """

    router: Tensor  # [experts, hidden]
    experts: Experts
    top_k: int
    is_normalised: bool
    norm: Norm
    act: Act
    ops: Ops
    router_bias: Tensor | None = None  # [experts]

    @property
    def num_bytes(self) -> int:
        experts = self.experts
        return weight_bytes(
            self.router,
            self.router_bias,
            self.norm.weight,
            experts.gate_up,
            experts.down,
            experts.gate_up_bias,
            experts.down_bias,
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        x = self.ops.norm(hidden, self.norm)
        scores = self.ops.project(x, self.router, self.router_bias)
        shares, ids = scores.softmax(-1, dtype=torch.float32).topk(self.top_k)
        if self.is_normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        shares = shares.to(hidden.dtype)
        return hidden.add_(self.ops.experts(x, self.experts, ids, shares, self.act))


Mlp: TypeAlias = DenseMlp | SparseMlp
"""An MLP is called with hidden states [n, hidden], and adds its output to them in place."""


def project_onto(
    residual: Tensor, x: Tensor, layer: nn.Linear, post_norm: Norm | None, ops: Ops
) -> Tensor:
    """Add layer(x), or post_norm(layer(x)) if there is a norm, to `residual`. x is [n, input]."""
    if post_norm is None:
        return ops.project(x, layer.weight, layer.bias, residual=residual)
    return ops.norm(ops.project(x, layer.weight, layer.bias), post_norm, residual)


def join(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Join several linear layers into one weight and one bias. The layers become views of these.

    Weights that follow each other in memory stay where they are.
    """
    weight = _joined([layer.weight.detach() for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    start = 0
    for layer in layers:
        end = start + layer.out_features
        layer.weight = nn.Parameter(weight[start:end], requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(bias[start:end], requires_grad=False)
        start = end
    return weight, bias


def _joined(weights: Sequence[Tensor]) -> Tensor:
    """The rows of all weights, as a view where these follow each other in memory."""
    begins = [weight.data_ptr() for weight in weights]
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    storages = {weight.untyped_storage().data_ptr() for weight in weights}
    are_contiguous = all(weight.is_contiguous() for weight in weights)
    if begins[1:] != ends[:-1] or len(storages) > 1 or not are_contiguous:
        return torch.cat(list(weights))
    num_rows = sum(len(weight) for weight in weights)
    num_columns = weights[0].shape[1]
    return weights[0].as_strided((num_rows, num_columns), weights[0].stride())
