"""The decoder layer of a draft model in training: causal attention over whole rows, in blocks.

A chain starts at each position of a row. Its element k attends to the row up to that position
and to the chain's elements up to itself, as a drafter does on one path of its tree.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)

Chain = list[tuple[Tensor, Tensor]]
"""Keys and values [rows, heads, length, head_dim] of the rows and of each chain element so far."""

BLOCKS = "specbench_blocks"
"""The name of `attend` in transformers.

In bfloat16 on a CPU it takes about half the time of torch's own attention.
"""
_BLOCK = 128
_SHARED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "rms_norm_eps", "max_position_embeddings", "vocab_size", "bos_token_id", "eos_token_id",
)  # fmt: skip


def config_fields(model: PreTrainedModel) -> dict[str, object]:
    """The official config.json of a one-layer Llama of the target's sizes and rotary base."""
    config = model.config.get_text_config()
    given: Mapping[str, Any] = config.to_dict()
    fields: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    shared = {name: getattr(config, name, None) for name in _SHARED}  # also by another name
    fields |= {name: value for name, value in shared.items() if value is not None}
    fields.setdefault("intermediate_size", 4 * config.hidden_size)
    fields |= {"num_hidden_layers": 1, "tie_word_embeddings": False, "torch_dtype": "float16"}
    head_dim = given.get("head_dim")
    if head_dim and head_dim * config.num_attention_heads != config.hidden_size:
        fields["head_dim"] = head_dim
    rope = dict(given.get("rope_parameters") or {})
    fields["rope_theta"] = rope.pop("rope_theta", None) or given.get("rope_theta", 10000.0)
    rope.pop("partial_rotary_factor", None)  # a head rotates all of its heads
    if rope.get("rope_type") in ("linear", "llama3", "yarn"):  # others depend on the length
        fields["rope_scaling"] = rope
    return fields


def layer_config(fields: Mapping[str, object]) -> LlamaConfig:
    """The layer's config from the fields of its config.json."""
    names = (*_SHARED, "head_dim", "rope_theta", "rope_scaling")
    return LlamaConfig(**{name: fields[name] for name in names if name in fields})


def attend(query: Tensor, chain: Chain) -> Tensor:
    """Attention of the chain's last element at every position.

    `query` [rows, heads, length, head_dim] is scaled already; the result has the same shape.
    """
    (key, value), *later = chain
    length = query.shape[2]
    blocks = []
    with torch.autocast(query.device.type, enabled=False):
        for start in range(0, length, _BLOCK):
            part = slice(start, min(start + _BLOCK, length))
            block = query[:, :, part]
            scores = block @ key[:, :, : part.stop].transpose(-1, -2)
            mask = torch.full_like(scores[0, 0], float("-inf")).triu(start + 1)
            own = [(block * k[:, :, part]).sum(-1, keepdim=True) for k, _ in later]
            shares = torch.cat([scores + mask, *own], -1).softmax(-1)
            out = shares[..., : part.stop] @ value[:, :, : part.stop]
            for i, (_, v) in enumerate(later):
                out = out + shares[..., part.stop + i, None] * v[:, :, part]
            blocks.append(out)
    return torch.cat(blocks, dim=2)


def _attend_rows(
    _: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, scaling: float, **__: object
) -> tuple[Tensor, None]:
    out = attend(q.to(v.dtype) * scaling, [(k.to(v.dtype), v)])
    return out.transpose(1, 2).contiguous(), None  # [rows, length, heads, head_dim]


AttentionInterface.register(BLOCKS, _attend_rows)


class Attention(nn.Module):
    """Llama's attention over rows and chains."""

    def __init__(self, config: LlamaConfig, input_size: int) -> None:
        super().__init__()
        self._dim = config.head_dim
        self._group_size = config.num_attention_heads // config.num_key_value_heads
        queries = config.num_attention_heads * self._dim
        keys = config.num_key_value_heads * self._dim
        self.q_proj = nn.Linear(input_size, queries, bias=False)
        self.k_proj = nn.Linear(input_size, keys, bias=False)
        self.v_proj = nn.Linear(input_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self._rotary = (LlamaRotaryEmbedding(config),)  # constants, not in the state dict

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
        size = self._group_size
        chain.append((repeat_kv(key.to(value.dtype), size), repeat_kv(value, size)))
        out = attend(query.to(value.dtype) * self._dim**-0.5, chain)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class Layer(nn.Module):
    """Attention and MLP of one decoder layer, without a norm before the attention."""

    def __init__(self, config: LlamaConfig, input_size: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, input_size)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, residual: Tensor, attended: Tensor, chain: Chain) -> Tensor:
        """Output [rows, length, hidden]. Attention reads `attended` [rows, length, input].

        Its output is added to `residual` [rows, length, hidden].
        """
        hidden = residual + self.self_attn(attended, chain)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
