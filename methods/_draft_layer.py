"""A drafter's own decoder layer with its own cache.

Knows one layer and the sequence in its cache, not a tree's tokens or the target.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbench.engine.fused.layer import FusedLayer, Projections, Rotary, activation
from specbench.engine.fused.mlp import DenseMlp
from specbench.engine.fused.ops import CacheSlots, CacheSpan, Norm, Ops, TreeMask
from specbench.engine.kv import KVCache, LayerShape
from specbench.methods._checkpoint import Checkpoint

_FIELDS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings",
)  # fmt: skip


def layer_config(checkpoint: Checkpoint, fields: dict[str, Any], query: str) -> LlamaConfig:
    """Config of the layer, from the `fields` of a head or target and its `query` weight's shape.

    The head size is read from the weight: it need not be the hidden size divided by the heads.
    """
    known = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        if not isinstance(known.get(name), int) or known[name] < 1:
            raise checkpoint.error(f"has a config without a valid {name}")
    rows, heads = checkpoint.shape(query)[0], known["num_attention_heads"]
    if rows % (2 * heads):
        raise checkpoint.error(f"has {query} with {rows} rows for {heads} heads")
    with _telling(checkpoint):
        return LlamaConfig(
            **known,
            head_dim=rows // heads,
            attention_bias=bool(fields.get("qkv_bias")),
            attn_implementation="sdpa",
        )


@contextmanager
def _telling(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn errors of transformers on an unknown config into the checkpoint's error."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise checkpoint.error(f"has a config that is not a Llama layer's ({error})") from error


def rms_norm(checkpoint: Checkpoint, name: str, config: LlamaConfig) -> Norm:
    """The norm of that name."""
    weight = checkpoint.take(f"{name}.weight", config.hidden_size)
    return Norm(weight, config.rms_norm_eps)


class DraftLayer:
    """Attention and MLP of one decoder layer, with the keys and values of committed positions.

    A step feeds the missing positions after the cached prefix, and may then run over the levels of
    a tree; their rows are scratch. The caller applies the input norm. Queries, keys and values
    have biases if the checkpoint has them (Qwen's heads). Device tensors give the cache rows to
    write, so no shape except `CacheSpan` depends on the number of committed tokens.
    """

    def __init__(
        self, checkpoint: Checkpoint, prefix: str, config: LlamaConfig, input_size: int, ops: Ops
    ) -> None:
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        with _telling(checkpoint):
            rotary = LlamaRotaryEmbedding(config).to(checkpoint.device)
            act = activation(config.hidden_act)

        def projection(name: str, size: int) -> nn.Linear:
            has_bias = config.attention_bias or f"{attention}.{name}.bias" in checkpoint
            return checkpoint.linear(f"{attention}.{name}", input_size, size, bias=has_bias)

        parts = Projections(
            projection("q_proj", queries),
            projection("k_proj", keys),
            projection("v_proj", keys),
            checkpoint.linear(f"{attention}.o_proj", queries, hidden, bias=False),
        )
        dense = DenseMlp(
            checkpoint.linear(f"{mlp}.gate_proj", hidden, inner, bias=False),
            checkpoint.linear(f"{mlp}.up_proj", hidden, inner, bias=False),
            checkpoint.linear(f"{mlp}.down_proj", inner, hidden, bias=False),
            rms_norm(checkpoint, f"{prefix}.post_attention_layernorm", config),
            act,
            ops,
        )
        checkpoint.skip(f"{attention}.rotary_emb.inv_freq")  # a constant in old files
        self._layer = FusedLayer(parts, dense, dim, ops)
        weight = parts.o.weight
        self._rotary = Rotary(rotary, weight)
        shape = (config.num_key_value_heads, dim)
        self.cache = KVCache([LayerShape(shape, shape, weight.dtype, weight.device)])
        self.dtype, self._device = weight.dtype, weight.device
        self._nothing = weight.new_zeros(1, 0)

    def reserve(self, num_tokens: int) -> bool:
        """Make room for `num_tokens` positions; True if the existing rows moved."""
        has_moved = self.cache.reserve(num_tokens)
        self._rotary.reserve(self.cache.capacity)
        return has_moved

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        return self._layer.num_bytes

    def prefill(self, attended: Tensor) -> None:
        """Begin a sequence with attention inputs `attended` [n, input]."""
        self._keep(attended, torch.arange(attended.shape[0], device=self._device))

    def feed(
        self, residual: Tensor, attended: Tensor, start: Tensor, last: Tensor, cache_span: CacheSpan
    ) -> Tensor:
        """Append rows after the first `start` []; returns the output [1, hidden] of row `last` [1].

        `attended` [n, input] are the attention's inputs; its output is added to `residual`
        [n, hidden]. Rows after `last` are padding: their keys and values are scratch.
        `cache_span` counts the rows up to the last one.
        """
        queries = self._keep(attended, start + torch.arange(attended.shape[0], device=self._device))
        residual, queries = residual.index_select(0, last), queries.index_select(0, last)
        return self._see(residual, queries, TreeMask(start + last + 1, self._nothing, cache_span))

    def extend(
        self, residual: Tensor, attended: Tensor, slots: CacheSlots, end: Tensor, mask: Tensor,
        cache_span: CacheSpan,
    ) -> Tensor:  # fmt: skip
        """Run over one level of a tree; returns [n, hidden].

        `slots` is the level's entry of `tree_slots`. All nodes see the first `end` [] rows, those
        before the tree. `mask` [n, rows of the tree so far + n] is additive.
        """
        queries = self._layer.write_kv(attended, self.cache.rows(0), slots)
        return self._see(residual, queries, TreeMask(end, mask, cache_span))

    def tree_slots(self, end: Tensor, sizes: Sequence[int]) -> list[CacheSlots]:
        """Cache slots of a tree's levels of `sizes` rows, after the first `end` [] rows."""
        rows = end + torch.arange(sum(sizes), device=self._device)
        turns = self._rotary.cos_sin(end + torch.arange(len(sizes), device=self._device))
        return list(map(CacheSlots, rows.split(sizes), turns.split(1)))

    def _keep(self, attended: Tensor, rows: Tensor) -> Tensor:
        slots = CacheSlots(rows, self._rotary.cos_sin(rows))
        return self._layer.write_kv(attended, self.cache.rows(0), slots)

    def _see(self, residual: Tensor, queries: Tensor, tree_mask: TreeMask) -> Tensor:
        cached = self.cache.rows(0)
        return self._layer.mlp(self._layer.attend(residual, queries, cached, tree_mask))
