"""A drafter's own decoder layer: transformers' Llama attention and MLP on the engine's cache.

Knows one layer and the sequence in its cache. Knows nothing of trees' tokens or of targets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from specbench.engine.kv import KVCache, LayerShape
from specbench.engine.weights import weight_bytes
from specbench.methods._checkpoint import Checkpoint, frozen

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


def rms_norm(checkpoint: Checkpoint, name: str, config: LlamaConfig) -> nn.Module:
    """The norm of that name."""
    with torch.device("meta"):
        norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
    norm.weight = frozen(checkpoint.take(f"{name}.weight", config.hidden_size))
    return norm


class DraftLayer:
    """Attention and MLP of one decoder layer, with the keys and values of the committed positions.

    Rows behind the stable prefix are scratch: a step crops to the prefix, feeds what is missing,
    and may then run over the levels of a tree. The input norm is the caller's. Queries, keys and
    values have biases where the checkpoint holds them (Qwen's heads).
    """

    def __init__(
        self, checkpoint: Checkpoint, prefix: str, config: LlamaConfig, input_size: int
    ) -> None:
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        attention = f"{prefix}.self_attn"
        with _telling(checkpoint):
            self._rotary = LlamaRotaryEmbedding(config).to(checkpoint.device)
            with torch.device("meta"):
                self._attention = LlamaAttention(config, layer_idx=0)
                self._mlp = LlamaMLP(config)
        for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            has_bias = config.attention_bias or f"{attention}.{name}.bias" in checkpoint
            layer = checkpoint.linear(f"{attention}.{name}", input_size, size, bias=has_bias)
            setattr(self._attention, name, layer)
        self._attention.o_proj = checkpoint.linear(
            f"{attention}.o_proj", queries, hidden, bias=False
        )
        for name, (rows_in, rows_out) in {
            "gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden),
        }.items():  # fmt: skip
            linear = checkpoint.linear(f"{prefix}.mlp.{name}", rows_in, rows_out, bias=False)
            setattr(self._mlp, name, linear)
        checkpoint.skip(f"{attention}.rotary_emb.inv_freq")  # a constant that old files hold
        self._norm = rms_norm(checkpoint, f"{prefix}.post_attention_layernorm", config)
        weight = self._attention.o_proj.weight
        shape = (config.num_key_value_heads, dim)
        self.cache = KVCache([LayerShape(shape, shape, weight.dtype, weight.device)])
        self._like = weight.new_zeros(())
        self._cos = self._sin = weight.new_zeros(1, 0, dim)
        self._triangle = weight.new_zeros(0, 0)

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights."""
        return weight_bytes(self._attention, self._mlp, self._norm)

    def reserve(self, num_tokens: int) -> None:
        """Make room for that many positions."""
        self.cache.reserve(num_tokens)
        if self._cos.shape[1] < self.cache.capacity:
            positions = torch.arange(self.cache.capacity, device=self._like.device)[None]
            self._cos, self._sin = self._rotary(self._like, positions)

    def feed(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Commit rows [n, hidden] behind the stable prefix; returns the last one's output.

        `attended` [n, input] is what the attention sees of them, `residual` what its output is
        added to. Returns [1, hidden].
        """
        n, start = residual.shape[0], self.cache.length
        mask = self._causal(n) if start and n > 1 else None
        out = self._attend(attended, slice(start, start + n), mask)
        return self._finish(residual[-1:], out[-1:])

    def extend(self, residual: Tensor, attended: Tensor, position: int, mask: Tensor) -> Tensor:
        """Run over one level of a tree, all of whose rows [n, hidden] have one position.

        `mask` [n, scratch rows so far + n] is additive. Returns [n, hidden].
        """
        out = self._attend(attended, slice(position, position + 1), mask)
        return self._finish(residual, out)

    def additive(self, sees: Tensor) -> Tensor:
        """The additive mask of a boolean one: 0 where a row sees, the lowest number elsewhere."""
        mask = torch.zeros(sees.shape, dtype=self._like.dtype, device=sees.device)
        return mask.masked_fill_(~sees, torch.finfo(mask.dtype).min)

    def _attend(self, attended: Tensor, positions: slice, mask: Tensor | None) -> Tensor:
        """Attention over the cached rows and those of `attended` [n, input], which are kept."""
        n = attended.shape[0]
        if mask is not None:  # the rows before the mask's columns are seen by all
            mask = pad(mask, (self.cache.length + n - mask.shape[1], 0))[None, None]
        out, _ = self._attention(
            attended[None],
            position_embeddings=(self._cos[:, positions], self._sin[:, positions]),
            attention_mask=mask,
            past_key_values=self.cache,
        )
        self.cache.commit(range(n))
        return out[0]

    def _finish(self, residual: Tensor, attention: Tensor) -> Tensor:
        hidden = residual + attention
        return hidden + self._mlp(self._norm(hidden))

    def _causal(self, n: int) -> Tensor:
        if n > self._triangle.shape[0]:
            ones = torch.ones(n, n, dtype=torch.bool, device=self._like.device)
            self._triangle = self.additive(ones.tril())
        return self._triangle[:n, :n]
