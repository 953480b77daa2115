"""A Llama-family decoder layer in few, large operations on the engine's own cache rows.

Knows weights and the order of operations, not models, trees or methods. `engine.fused.ops`
computes the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers.activations import ACT2FN

from specbench.engine.fused.ops import TORCH, CacheRows, CacheSlots, Heads, Norm, Ops, TreeMask
from specbench.engine.weights import weight_bytes


class Rotary:
    """Table of rotary position embeddings, made by a model's own module."""

    def __init__(self, module: nn.Module, like: Tensor) -> None:
        self._module = module
        self._like = like.new_zeros(())
        self._table = like.new_zeros(0)  # [positions, 2, 1, 2, head_dim / 2]

    def reserve(self, num_positions: int) -> None:
        """Extend the table to at least `num_positions`."""
        if num_positions <= self._table.shape[0]:
            return
        positions = torch.arange(num_positions, device=self._like.device)[None]
        cos, sin = (part[0, :, None].unflatten(-1, (2, -1)) for part in self._module(
            self._like, positions
        ))  # fmt: skip
        self._table = torch.stack([cos, torch.cat([-sin[:, :, :1], sin[:, :, 1:]], 2)], 1)

    def cos_sin(self, positions: Tensor) -> Tensor:
        """Embeddings of positions [n], in the format of `CacheSlots`."""
        return self._table.index_select(0, positions)


@dataclass(frozen=True, slots=True, eq=False)
class Projections:
    """The linear layers of a decoder layer, as stored in a model or checkpoint."""

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    o: nn.Linear
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear


class FusedLayer:
    """Attention and MLP of a decoder layer.

    The weights of queries, keys and values become one matrix, those of gate and up projection
    another. The given layers become views of these, so nothing is stored twice.
    """

    def __init__(
        self, parts: Projections, norm: Norm, head_dim: int, act: Callable[[Tensor], Tensor],
        ops: Ops = TORCH, head_norms: tuple[Norm, Norm] | None = None,
    ) -> None:  # fmt: skip
        """`head_norms` of each query head and of each key head come before rotary embeddings."""
        num_kv = parts.k.out_features // head_dim
        self.heads = Heads(num_kv, parts.q.out_features // parts.k.out_features, head_dim)
        self._qkv, self._qkv_bias = _join([parts.q, parts.k, parts.v])
        self._gate_up, self._gate_up_bias = _join([parts.gate, parts.up])
        self._o, self._down = parts.o, parts.down
        self._norm, self._act, self._ops = norm, act, ops
        self._head_norms = head_norms

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        biases = [bias for bias in (self._qkv_bias, self._gate_up_bias) if bias is not None]
        norms = [norm.weight for norm in (self._norm, *(self._head_norms or ()))]
        return weight_bytes(self._qkv, self._gate_up, *biases, self._o, self._down, *norms)

    def write_kv(
        self, x: Tensor, cached: CacheRows, slots: CacheSlots, norm: Norm | None = None
    ) -> Tensor:
        """Write the keys and values of x [n, input] to the cache, after `norm` if given.

        Returns the queries [n, num_heads * head_dim].
        """
        qkv = self._ops.project(x, self._qkv, self._qkv_bias, norm=norm)
        if self._head_norms:
            queries, keys, _ = self.heads.split(qkv)
            for heads, norm_heads in zip((queries, keys), self._head_norms, strict=True):
                heads.copy_(norm_heads(heads))
        self._ops.write_kv(qkv, cached, slots, self.heads)
        return qkv[:, : self.heads.query_width]

    def attend(
        self, residual: Tensor, queries: Tensor, cached: CacheRows, tree_mask: TreeMask | None
    ) -> Tensor:
        """Add the attention's output for queries [n, heads * head_dim] to `residual` [n, hidden].

        Without `tree_mask`, the queries belong to the cache's first rows and attention is causal.
        """
        out = self._ops.attend(queries, cached, tree_mask, self.heads)
        return self._ops.project(out, self._o.weight, self._o.bias, residual=residual)

    def mlp(self, hidden: Tensor) -> Tensor:
        """Add the MLP's output for `hidden` [n, hidden] to `hidden`."""
        weight, bias = self._gate_up, self._gate_up_bias
        inner = self._ops.gated(hidden, weight, bias, self._norm, self._act)
        return self._ops.project(inner, self._down.weight, self._down.bias, residual=hidden)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation of that name in a config; torch's `silu` for the one that kernels support."""
    return silu if name in ("silu", "swish") else ACT2FN[name]


def _join(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Join several linear layers into one weight and bias; the layers become views of these."""
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
