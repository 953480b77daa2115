"""The one layer of EAGLE's draft models: a decoder layer of Llama in the target's sizes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from specbench.training.chain_attention import BLOCKS, Chain

_SHARED = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "vocab_size",
    "bos_token_id",
    "eos_token_id",
)
"""The fields of the draft model's config that are copied from the target's."""
_KEPT_ROPE_TYPES = ("linear", "llama3", "yarn")
"""Kinds of rotary scaling that a draft model may have. Other kinds depend on the length."""
_DEFAULT_ROPE_THETA = 10000.0


def config_fields(model: PreTrainedModel) -> dict[str, object]:
    """Return the config.json of a one-layer Llama with the target's sizes and rotary base."""
    config = model.config.get_text_config()
    target_fields: Mapping[str, Any] = config.to_dict()
    fields: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    # getattr finds a field even if the config has another name for it.
    shared = {name: getattr(config, name, None) for name in _SHARED}
    fields |= {name: field for name, field in shared.items() if field is not None}
    fields.setdefault("intermediate_size", 4 * config.hidden_size)
    fields |= {"num_hidden_layers": 1, "tie_word_embeddings": False, "torch_dtype": "float16"}
    head_dim = target_fields.get("head_dim")
    if head_dim and head_dim * config.num_attention_heads != config.hidden_size:
        fields["head_dim"] = head_dim
    rope = dict(target_fields.get("rope_parameters") or {})
    rope_theta = rope.pop("rope_theta", None)
    fields["rope_theta"] = rope_theta or target_fields.get("rope_theta", _DEFAULT_ROPE_THETA)
    rope.pop("partial_rotary_factor", None)  # a draft model rotates whole heads
    if rope.get("rope_type") in _KEPT_ROPE_TYPES:
        fields["rope_scaling"] = rope
    return fields


def layer_config(fields: Mapping[str, object]) -> LlamaConfig:
    """Return the layer's config, from the fields of its config.json."""
    return LlamaConfig(**fields, attn_implementation=BLOCKS)


class Layer(nn.Module):
    """Attention and MLP of one decoder layer, without a norm before the attention."""

    def __init__(self, config: LlamaConfig, input_size: int) -> None:
        """Make a layer whose attention reads `input_size` channels."""
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_idx=0)
        if input_size != config.hidden_size:
            for name in ("q_proj", "k_proj", "v_proj"):
                num_outputs = self.self_attn.get_submodule(name).out_features
                self.self_attn.add_module(name, nn.Linear(input_size, num_outputs, bias=False))
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        # The tuple keeps its constants out of the state dict.
        self._rotary = (LlamaRotaryEmbedding(config),)

    def forward(self, residual: Tensor, attended: Tensor, chain: Chain) -> Tensor:
        """Return the output [rows, length, hidden] of the chain's next element.

        If `chain` is empty, this is the output of the rows. Attention reads `attended` [rows,
        length, input], and its output is added to `residual` [rows, length, hidden].
        """
        positions = torch.arange(residual.shape[1], device=residual.device)[None] + len(chain)
        rotary = self._rotary[0].to(residual.device)
        cos_sin = rotary(residual, positions)
        attention, _ = self.self_attn(attended, cos_sin, chain=chain)
        hidden = residual + attention
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
