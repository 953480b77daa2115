"""A draft model's decoder layer in training: whole rows, and chains that leave them.

A chain hangs below each position of a row: its element k sees the row up to that position, and
the chain's elements up to itself. That is what a drafter computes on one path of its tree.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)

Chain = list[tuple[Tensor, Tensor]]
"""Keys and values [rows, heads, length, head_dim] of the row and of each chain element so far."""

_BLOCK = 128
_SHARED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "rms_norm_eps", "max_position_embeddings", "vocab_size", "bos_token_id", "eos_token_id",
)  # fmt: skip


def head_fields(model: PreTrainedModel) -> dict[str, object]:
    """The official config.json of a one-layer Llama of the target's sizes and rotary base."""
    config = model.config.get_text_config()
    given: Mapping[str, Any] = config.to_dict()
    fields: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    fields |= {name: given[name] for name in _SHARED if given.get(name) is not None}
    fields |= {"num_hidden_layers": 1, "tie_word_embeddings": False, "torch_dtype": "float16"}
    head_dim = given.get("head_dim")
    if head_dim and head_dim * given["num_attention_heads"] != given["hidden_size"]:
        fields["head_dim"] = head_dim
    rope = dict(given.get("rope_parameters") or {})
    fields["rope_theta"] = rope.pop("rope_theta", None) or given.get("rope_theta", 10000.0)
    if rope.get("rope_type", "default") != "default":
        fields["rope_scaling"] = rope
    return fields


def llama_config(fields: Mapping[str, object]) -> LlamaConfig:
    """The layer's config from the fields of its config.json."""
    names = (*_SHARED, "head_dim", "rope_theta", "rope_scaling")
    return LlamaConfig(**{name: fields[name] for name in names if name in fields})


class Attention(nn.Module):
    """Llama's attention over rows and the chains below their positions."""

    def __init__(self, config: LlamaConfig, input_size: int) -> None:
        super().__init__()
        self._dim, self._groups = config.head_dim, config.num_attention_heads
        self._groups //= config.num_key_value_heads
        queries = config.num_attention_heads * self._dim
        keys = config.num_key_value_heads * self._dim
        self.q_proj = nn.Linear(input_size, queries, bias=False)
        self.k_proj = nn.Linear(input_size, keys, bias=False)
        self.v_proj = nn.Linear(input_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self._rotary = (LlamaRotaryEmbedding(config),)  # constants, in no checkpoint

    def forward(self, x: Tensor, chain: Chain) -> Tensor:
        """The next element of every chain, or the rows themselves if `chain` is empty.

        `x` is [rows, length, input]. Its keys and values are added to the chain.
        """
        rows, length, _ = x.shape
        query, key, value = (
            project(x).view(rows, length, -1, self._dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        positions = torch.arange(length, device=x.device)[None] + len(chain)
        cos, sin = self._rotary[0].to(x.device)(value, positions)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        chain.append((repeat_kv(key.to(value.dtype), self._groups), repeat_kv(value, self._groups)))
        out = attend(query.to(value.dtype), chain)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


def attend(query: Tensor, chain: Chain) -> Tensor:
    """Attention of the last chain element [rows, heads, length, head_dim] at every position."""
    (key, value), *later = chain
    scale, length = query.shape[-1] ** -0.5, query.shape[2]
    blocks = []
    with torch.autocast(query.device.type, enabled=False):
        for start in range(0, length, _BLOCK):
            part = slice(start, min(start + _BLOCK, length))
            block = query[:, :, part] * scale
            scores = block @ key[:, :, : part.stop].transpose(-1, -2)
            behind = torch.full_like(scores[0, 0], float("-inf")).triu(start + 1)
            own = [(block * k[:, :, part]).sum(-1, keepdim=True) for k, _ in later]
            shares = torch.cat([scores + behind, *own], -1).softmax(-1)
            out = shares[..., : part.stop] @ value[:, :, : part.stop]
            for i, (_, v) in enumerate(later):
                out = out + shares[..., part.stop + i, None] * v[:, :, part]
            blocks.append(out)
    return torch.cat(blocks, dim=2)


class Layer(nn.Module):
    """Attention and MLP of one decoder layer, without a norm before the attention."""

    def __init__(self, config: LlamaConfig, input_size: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, input_size)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, residual: Tensor, attended: Tensor, chain: Chain) -> Tensor:
        """Output [rows, length, hidden]; `attended` [rows, length, input] is what attention sees,
        `residual` what its output is added to.
        """
        hidden = residual + self.self_attn(attended, chain)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
