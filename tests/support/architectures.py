"""Tiny configs of every model class that is tested over trees."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

WINDOW = 6

SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
_GPT = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED = {"n_routed_experts": 4, **_EXPERTS, "n_group": 1, "topk_group": 1}
_LATENT = {
    **SMALL, **_ROUTED, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
}  # fmt: skip
_WINDOW = {**_GROUPED, "sliding_window": WINDOW}
_MIXED = {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_USED = {"use_sliding_window": True}
_MIXED_USED = {**_MIXED, **_USED}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_CHUNKED = {
    **_GROUPED, "attention_chunk_size": WINDOW, "num_local_experts": 2, "intermediate_size_mlp": 64,
    "layer_types": ["chunked_attention", "full_attention"],
}  # fmt: skip
_GEMMA4 = {**_MIXED, "vocab_size_per_layer_input": 50, "hidden_size_per_layer_input": 8}
_IMAGES = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip

FULL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "apertus", "arcee", "cohere", "ernie4_5", "gemma", "glm", "glm4", "granite",
            "helium", "hunyuan_v1_dense", "llama", "nemotron", "olmo", "olmo2", "seed_oss",
            "stablelm",
        ),
        _GROUPED,
    ),
    **dict.fromkeys(("biogpt", "gpt_neox", "persimmon", "phi"), SMALL),
    **{name: {**_GPT, "rotary_dim": 4} for name in ("codegen", "gptj")},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _LATENT),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), _GPT),
    **{name: {**_GROUPED, **_LOCAL} for name in ("granitemoe", "minimax_m2")},
    "ernie4_5_moe": {**_GROUPED, **_EXPERTS, "moe_num_experts": 4, "moe_k": 2},
    "falcon": {**SMALL, "alibi": False},
    "glm4_moe": {**_GROUPED, **_ROUTED, "first_k_dense_replace": 1},
    "hunyuan_v1_moe": {**_GROUPED, "num_experts": 4, "moe_topk": 2},
    "opt": {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32},
}  # fmt: skip
"""By model type: configs with attention over all earlier tokens."""

LIMITED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("cohere2", "cwm", "exaone4", "granite_swa"), _MIXED),
    **dict.fromkeys(("ministral", "olmo3"), _MIXED),
    **dict.fromkeys(("ministral3", "mistral", "phi3", "starcoder2"), _WINDOW),
    **dict.fromkeys(("qwen2", "qwen3", "smollm3"), _MIXED_USED),
    "gemma2": {**_WINDOW, "query_pre_attn_scalar": 8},
    "gemma3": {"text_config": {**_MIXED, "model_type": "gemma3_text"}, "vision_config": _IMAGES},
    "gemma3_text": {**_MIXED, "query_pre_attn_scalar": 8},
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_text": _GEMMA4,
    "gpt_oss": {
        **_WINDOW, **_LOCAL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "llama4": {"text_config": _CHUNKED, "vision_config": _IMAGES},
    "llama4_text": _CHUNKED,
    **{name: {**_WINDOW, "num_local_experts": 4} for name in ("mixtral", "phimoe")},
    "mimo_v2_flash": {**_MIXED, **_ROUTED, "v_head_dim": 8},
    "qwen2_moe": {
        **_MIXED_USED, **_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 16,
    },
    "qwen3_moe": {**_WINDOW, **_USED, **_EXPERTS, "num_experts": 4},
}  # fmt: skip
"""By model type: configs with windows or chunks of `WINDOW` tokens in all or half of the layers."""


def config_of(model_type: str, **changes: Any) -> Any:
    """The tiny config of a model type."""
    values = {**FULL, **LIMITED}.get(model_type, {})
    return AutoConfig.for_model(model_type, **{**values, **changes})


def random_of(config: Any) -> PreTrainedModel:
    """A random model whose logits are so sharp that greedy paths have no ties."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    return model
