"""A Llama-family decoder layer in few, large operations on the engine's own cache rows.

Knows weights and their order. Knows nothing of models, trees or methods, nor how an operation is
computed: `engine.ops` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers.activations import ACT2FN

from specbench.engine.ops import TORCH, CacheRows, Heads, Norm, Ops, Place, View
from specbench.engine.weights import weight_bytes


class Rotary:
    """Rotary position embeddings as a table, made by a model's own module as far as needed."""

    def __init__(self, module: nn.Module, like: Tensor) -> None:
        self._module = module
        self._like = like.new_zeros(())
        self._table = like.new_zeros(0)  # [positions, 2, 1, 2, head_dim / 2]

    def reserve(self, num_positions: int) -> None:
        """Make the table at least so long."""
        if num_positions <= self._table.shape[0]:
            return
        positions = torch.arange(num_positions, device=self._like.device)[None]
        cos, sin = (part[0, :, None].unflatten(-1, (2, -1)) for part in self._module(
            self._like, positions
        ))  # fmt: skip
        self._table = torch.stack([cos, torch.cat([-sin[:, :, :1], sin[:, :, 1:]], 2)], 1)

    def turn(self, positions: Tensor) -> Tensor:
        """The embeddings of positions [n], as `Place` holds them."""
        return self._table.index_select(0, positions)


@dataclass(frozen=True, slots=True, eq=False)
class Projections:
    """The linear layers of a decoder layer, as a model or a checkpoint holds them."""

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear


class FusedLayer:
    """Attention and MLP of a decoder layer.

    The queries', keys' and values' weights become one matrix, and the gate's and the up
    projection's another; the given layers go on as views of these, and nothing is held twice.
    """

    def __init__(
        self, parts: Projections, norm: Norm, head_dim: int, act: Callable[[Tensor], Tensor],
        ops: Ops = TORCH,
    ) -> None:  # fmt: skip
        num_kv = parts.k.out_features // head_dim
        self._heads = Heads(num_kv, parts.q.out_features // parts.k.out_features, head_dim)
        self._qkv, self._qkv_bias = _join([parts.q, parts.k, parts.v])
        self._gate_up, self._gate_up_bias = _join([parts.gate, parts.up])
        self._o, self._down = parts.o, parts.down
        self._norm, self._act, self._ops = norm, act, ops

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        biases = [bias for bias in (self._qkv_bias, self._gate_up_bias) if bias is not None]
        return weight_bytes(
            self._qkv, self._gate_up, *biases, self._o, self._down, self._norm.weight
        )

    def keep(self, x: Tensor, cached: CacheRows, place: Place, norm: Norm | None = None) -> Tensor:
        """Cache keys and values of x [n, input], which is normed before.

        Returns the queries [n, num_heads * head_dim].
        """
        qkv = self._ops.project(x, self._qkv, self._qkv_bias, norm=norm)
        self._ops.keep(qkv, cached, place, self._heads)
        return qkv[:, : self._heads.query_width]

    def attend(
        self, residual: Tensor, queries: Tensor, cached: CacheRows, view: View | None
    ) -> Tensor:
        """Add the attention's output for queries [n, heads * head_dim] to `residual` [n, hidden].

        Without a view the queries are those of the cache's first rows, which see causally.
        """
        out = self._ops.attend(queries, cached, view, self._heads)
        return self._ops.project(out, self._o.weight, self._o.bias, onto=residual)

    def mlp(self, hidden: Tensor) -> Tensor:
        """Add the MLP's output for `hidden` [n, hidden] to it."""
        weight, bias = self._gate_up, self._gate_up_bias
        inner = self._ops.gated(hidden, weight, bias, self._norm, self._act)
        return self._ops.project(inner, self._down.weight, self._down.bias, onto=hidden)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation that a config names; torch's own function for the one that kernels know."""
    return silu if name in ("silu", "swish") else ACT2FN[name]


def _join(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """One weight and bias for several linear layers, which become views of them."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    start = 0
    for layer in layers:
        own = slice(start, start + layer.out_features)
        start = own.stop
        layer.weight = nn.Parameter(weight[own], requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(bias[own], requires_grad=False)
    return weight, bias
