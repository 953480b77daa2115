"""A drafter's own decoder layer, on a cache of its own.

Knows one layer and the sequence in its cache. Knows nothing of trees' tokens or of targets.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbench.engine.kv import KVCache, LayerShape
from specbench.engine.layer import FusedLayer, Projections, Rotary, activation
from specbench.engine.ops import Norm, Ops, Place, Reach, View
from specbench.methods._checkpoint import Checkpoint

_FIELDS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings",
)  # fmt: skip


def layer_config(checkpoint: Checkpoint, fields: dict[str, Any], query: str) -> LlamaConfig:
    """The layer's config from a head's or target's `fields`, and the shape of its `query` weight.

    The head size is read off the weight: it need not be hidden size by heads.
    """
    known = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        if not isinstance(known.get(name), int) or known[name] < 1:
            raise checkpoint.error(f"has a config that tells no {name}")
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
    """Turn what transformers raises on a foreign config into the checkpoint's error."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise checkpoint.error(f"has a config that describes no Llama layer ({error})") from error


def rms_norm(checkpoint: Checkpoint, name: str, config: LlamaConfig) -> Norm:
    """The norm of that name."""
    weight = checkpoint.take(f"{name}.weight", config.hidden_size)
    return Norm(weight, config.rms_norm_eps)


class DraftLayer:
    """Attention and MLP of one decoder layer, with the keys and values of the committed positions.

    Rows behind the stable prefix are scratch: a step feeds what is missing behind the prefix, and
    may then run over the levels of a tree. The input norm is the caller's. Queries, keys and
    values have biases where the checkpoint holds them (Qwen's heads). Where rows are kept is told
    by device tensors, so that no shape depends on how much is committed unless `Reach` does.
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
            checkpoint.linear(f"{mlp}.gate_proj", hidden, inner, bias=False),
            checkpoint.linear(f"{mlp}.up_proj", hidden, inner, bias=False),
            checkpoint.linear(f"{mlp}.down_proj", inner, hidden, bias=False),
        )
        checkpoint.skip(f"{attention}.rotary_emb.inv_freq")  # a constant that old files hold
        norm = rms_norm(checkpoint, f"{prefix}.post_attention_layernorm", config)
        self._layer = FusedLayer(parts, norm, dim, act, ops)
        weight = parts.o.weight
        self._rotary = Rotary(rotary, weight)
        shape = (config.num_key_value_heads, dim)
        self.cache = KVCache([LayerShape(shape, shape, weight.dtype, weight.device)])
        self.dtype, self._device = weight.dtype, weight.device
        self._nothing = weight.new_zeros(1, 0)

    def reserve(self, num_tokens: int) -> bool:
        """Make room for that many positions; tells if what was there has moved."""
        has_moved = self.cache.reserve(num_tokens)
        self._rotary.reserve(self.cache.capacity)
        return has_moved

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        return self._layer.num_bytes

    def prefill(self, attended: Tensor) -> None:
        """Begin a sequence with rows that the attention sees as `attended` [n, input]."""
        self._keep(attended, torch.arange(attended.shape[0], device=self._device))

    def feed(
        self, residual: Tensor, attended: Tensor, start: Tensor, last: Tensor, reach: Reach
    ) -> Tensor:
        """Put rows behind the first `start` []; returns the output [1, hidden] of row `last` [1].

        `attended` [n, input] is what the attention sees of them, `residual` [n, hidden] what its
        output is added to. Rows behind the last one are padding: what the cache gets from them is
        scratch. `reach` counts the rows up to the last one.
        """
        queries = self._keep(attended, start + torch.arange(attended.shape[0], device=self._device))
        residual, queries = residual.index_select(0, last), queries.index_select(0, last)
        return self._see(residual, queries, View(start + last + 1, self._nothing, reach))

    def extend(
        self, residual: Tensor, attended: Tensor, place: Place, end: Tensor, mask: Tensor,
        reach: Reach,
    ) -> Tensor:  # fmt: skip
        """Run over one level of a tree [n, hidden], whose place is the level's of `places`.

        `end` [] counts the rows before the tree, which all see; `mask` [n, rows of the tree so far
        + n] is additive. Returns [n, hidden].
        """
        queries = self._layer.keep(attended, self.cache.rows(0), place)
        return self._see(residual, queries, View(end, mask, reach))

    def places(self, end: Tensor, sizes: Sequence[int]) -> list[Place]:
        """The places of a tree's levels, of so many rows each, behind the first `end` [] rows."""
        rows = end + torch.arange(sum(sizes), device=self._device)
        turns = self._rotary.turn(end + torch.arange(len(sizes), device=self._device))
        return list(map(Place, rows.split(sizes), turns.split(1)))

    def _keep(self, attended: Tensor, rows: Tensor) -> Tensor:
        place = Place(rows, self._rotary.turn(rows))
        return self._layer.keep(attended, self.cache.rows(0), place)

    def _see(self, residual: Tensor, queries: Tensor, view: View) -> Tensor:
        cached = self.cache.rows(0)
        return self._layer.mlp(self._layer.attend(residual, queries, cached, view))
