"""A decoder layer of the Llama family, in a few large operations on the engine's own cache rows.

`layers.ops` computes the operations.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers.activations import ACT2FN

from specbench.engine.layers.experts import Act
from specbench.engine.layers.mlp import Mlp, join, project_onto
from specbench.engine.layers.operands import CacheRows, CacheSlots, HeadNorm, Heads, Norm, TreeMask
from specbench.engine.layers.ops import TORCH, Ops, gelu_tanh
from specbench.engine.layers.torch_attention import PLAIN, Scoring
from specbench.engine.layers.weights import weight_bytes


class Rotary:
    """A table of rotary position embeddings, which a model's own module computes.

    `layer_type` chooses among the tables of a module (Gemma 3). The module may give the angles of
    half a head, which both halves share (gpt-oss).
    """

    def __init__(
        self, module: nn.Module, like: Tensor, head_dim: int, layer_type: str | None = None
    ) -> None:
        self._module = partial(module, layer_type=layer_type) if layer_type else module
        self._like = like.new_zeros(())
        self._half = head_dim // 2
        self.table = like.new_zeros(0)  # [positions, 2, 1, 2, head_dim / 2]

    def reserve(self, num_positions: int) -> None:
        """Extend the table to at least `num_positions`."""
        if num_positions <= self.table.shape[0]:
            return
        positions = torch.arange(num_positions, device=self._like.device)
        embeddings = self._module(self._like, positions[None])
        cos, sin = map(self._by_half, embeddings)  # [positions, 1, 2, head_dim / 2] each
        # rotated = x * cos + (x with swapped halves) * signed_sin
        first_sin, second_sin = sin[:, :, :1], sin[:, :, 1:]
        signed_sin = torch.cat([-first_sin, second_sin], 2)
        self.table = torch.stack([cos, signed_sin], 1)

    def _by_half(self, embeddings: Tensor) -> Tensor:
        """The module's cosines or sines [1, positions, ...] as [positions, 1, 2, head_dim / 2]."""
        by_position = embeddings[0, :, None]  # [positions, 1, head_dim or head_dim / 2]
        halves = by_position.unflatten(-1, (-1, self._half))
        return halves.expand(-1, 1, 2, -1)

    def cos_sin(self, positions: Tensor) -> Tensor:
        """Embeddings of positions [n], in the format of `CacheSlots`."""
        return self.table.index_select(0, positions)


class FusedLayer:
    """Attention and MLP of a decoder layer.

    The weights of queries, keys and values become one matrix. The given layers become views of
    this matrix, so nothing is stored twice.
    """

    def __init__(
        self,
        q: nn.Linear,
        k: nn.Linear,
        v: nn.Linear,
        o: nn.Linear,
        mlp: Mlp,
        head_dim: int,
        ops: Ops = TORCH,
        head_norms: tuple[Norm, Norm] | None = None,
        *,
        scoring: Scoring = PLAIN,
        post_norm: Norm | None = None,
    ) -> None:
        """`q`, `k`, `v` and `o` are the linear layers of the attention, as a model stores them.

        `head_norms` normalise queries and keys before the rotary embeddings. `post_norm` normalises
        the attention's output (Gemma).
        """
        num_kv = k.out_features // head_dim
        group = q.out_features // k.out_features  # query heads per key head
        self.heads = Heads(num_kv, group, head_dim)
        self.qkv, self.qkv_bias = join([q, k, v])
        self.o = o
        self.mlp = mlp
        self._ops = ops
        self.scoring = scoring
        self.post_norm = post_norm
        self.head_norm = HeadNorm.of(self.heads, *head_norms) if head_norms else None

    @property
    def num_bytes(self) -> int:
        """Bytes of the layer's weights."""
        return weight_bytes(self.qkv, self.qkv_bias, self.o) + self.mlp.num_bytes

    def write_kv(
        self,
        x: Tensor,
        cached: CacheRows,
        slots: CacheSlots,
        norm: Norm | None = None,
    ) -> Tensor:
        """Write the keys and values of x [n, input] to the cache. `norm` is applied to x first.

        Returns the queries [n, num_heads * head_dim].
        """
        qkv = self._ops.project(x, self.qkv, self.qkv_bias, norm=norm)
        self._ops.write_kv(qkv, cached, slots, self.heads, self.head_norm)
        return qkv[:, : self.heads.query_width]

    def attend(
        self,
        residual: Tensor,
        queries: Tensor,
        cached: CacheRows,
        tree_mask: TreeMask | None,
        window: int | None = None,
    ) -> Tensor:
        """Add the attention's output for queries [n, heads * head_dim] to `residual` [n, hidden].

        Without `tree_mask`, the queries belong to the cache's first rows and attention is
        causal. With `window`, a row sees that many positions, its own included.
        """
        out = self._ops.attend(queries, cached, tree_mask, self.heads, self.scoring, window)
        return project_onto(residual, out, self.o, self.post_norm, self._ops)


_ACTIVATIONS: dict[str, Act] = {
    "silu": silu,
    "swish": silu,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_tanh": gelu_tanh,
}
"""The activations that have kernels, by their names in configs."""


def activation(name: str) -> Act:
    """The activation of this name in a config."""
    return _ACTIVATIONS.get(name) or ACT2FN[name]
