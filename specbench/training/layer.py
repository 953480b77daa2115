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
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
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
    return LlamaConfig(**fields, attn_implementation=BLOCKS)


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
    _: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, *, scaling: float, **named: Any
) -> tuple[Tensor, None]:
    """Attention of the rows, or of the next element of every chain, which is added to `chain`."""
    num_queries = q.shape[1] // k.shape[1]
    chain: Chain = named.get("chain", [])
    chain.append((repeat_kv(k.to(v.dtype), num_queries), repeat_kv(v, num_queries)))
    out = attend(q.to(v.dtype) * scaling, chain)
    return out.transpose(1, 2).contiguous(), None  # [rows, length, heads, head_dim]


AttentionInterface.register(BLOCKS, _attend_rows)


class Layer(nn.Module):
    """Attention and MLP of one decoder layer, without a norm before the attention."""

    def __init__(self, config: LlamaConfig, input_size: int) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_idx=0)
        if input_size != config.hidden_size:
            for name in ("q_proj", "k_proj", "v_proj"):
                num_outputs = self.self_attn.get_submodule(name).out_features
                self.self_attn.add_module(name, nn.Linear(input_size, num_outputs, bias=False))
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._rotary = (LlamaRotaryEmbedding(config),)  # constants, not in the state dict

    def forward(self, residual: Tensor, attended: Tensor, chain: Chain) -> Tensor:
        """Output [rows, length, hidden]: of the rows if `chain` is empty, else of its next element.

        Attention reads `attended` [rows, length, input]. Its output is added to `residual`
        [rows, length, hidden].
        """
        positions = torch.arange(residual.shape[1], device=residual.device)[None] + len(chain)
        rotary = self._rotary[0].to(residual.device)(residual, positions)
        hidden = residual + self.self_attn(attended, rotary, chain=chain)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
