"""The models that the fused stack can run. Their layers, norms and experts are read here."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from specbench.engine.layers.config_fields import declared
from specbench.engine.layers.experts import Clamp, Experts
from specbench.engine.layers.layer import FusedLayer, activation
from specbench.engine.layers.mlp import DenseMlp, Mlp, SparseMlp
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import Ops
from specbench.engine.layers.torch_attention import FULL, SLIDING, Scoring, attention_kinds

_MODELS = frozenset({
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM",
    "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
})  # fmt: skip
"""The classes of transformers that the stack runs. To support another class whose layers
`fused_layer` can read, it is enough to add its name here.
"""
CAPPED = frozenset({"Gemma2ForCausalLM", "Gemma3ForCausalLM"})
"""Classes that cap their logits if the config says so. Other classes ignore the field."""
_SHIFTED = ("Gemma2RMSNorm", "Gemma3RMSNorm")
"""Classes of norms that store their weights minus one."""
_FIXED_ROPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles do not depend on the sequence's length."""


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """The reason that the model must run its own forward, or None if the stack can run it."""
    is_of_transformers = type(model).__module__.startswith("transformers.models.")
    if not is_of_transformers or type(model).__name__ not in _MODELS:
        return f"{type(model).__name__} is run by transformers' own forward"
    if getattr(model.config, "quantization_config", None) is not None:
        return "quantised weights are read by transformers' own forward"
    config = model.config.get_text_config()
    if ropes := _rope_types(config.rope_parameters or {}) - _FIXED_ROPES:
        return f"rotary embeddings of type {min(ropes)} depend on the length"
    if kinds := attention_kinds(config).keys() - {FULL, SLIDING}:
        return f"attention of type {min(kinds)} is run by transformers' own forward"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "the model is spread over several devices"
    return None


def fused_layer(layer: Any, config: Any, ops: Ops) -> tuple[Norm, FusedLayer]:
    """The norm before a decoder layer of a model, and the layer itself."""
    attention = layer.self_attn
    head_norms = None
    if hasattr(attention, "q_norm"):  # Qwen3, Gemma 3
        head_norms = (norm_of(attention.q_norm), norm_of(attention.k_norm))
    is_capped = type(attention).__name__ == "Gemma2Attention"  # Gemma 3 ignores the field
    soft_cap = attention.attn_logit_softcapping if is_capped else None
    scoring = Scoring(attention.scaling, soft_cap, getattr(attention, "sinks", None))
    before_mlp = norm_of(layer.post_attention_layernorm)
    after_mlp = None
    after_attention = None
    if hasattr(layer, "pre_feedforward_layernorm"):  # Gemma: a norm before and after each part
        after_attention = before_mlp
        before_mlp = norm_of(layer.pre_feedforward_layernorm)
        after_mlp = norm_of(layer.post_feedforward_layernorm)
    fused = FusedLayer(
        attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
        _mlp(layer.mlp, config, before_mlp, after_mlp, ops), attention.head_dim, ops, head_norms,
        scoring=scoring, post_norm=after_attention,
    )  # fmt: skip
    return norm_of(layer.input_layernorm), fused


def norm_of(module: Any) -> Norm:
    """A norm of a model. Gemma's weights are added to one in float32, as in its own forward."""
    if type(module).__name__ not in _SHIFTED:
        return Norm(module.weight, module.variance_epsilon)
    wide = torch.promote_types(module.weight.dtype, torch.float32)
    return Norm(1 + module.weight.detach().to(wide), module.eps)


def _mlp(mlp: Any, config: Any, norm: Norm, post_norm: Norm | None, ops: Ops) -> Mlp:
    """The MLP of a layer, dense or a mixture of experts, with the norms around it."""
    act = activation(declared(config, "hidden_activation") or config.hidden_act)
    if not hasattr(mlp, "experts"):
        return DenseMlp(mlp.gate_proj, mlp.up_proj, mlp.down_proj, norm, act, ops, post_norm)
    router = mlp.router if hasattr(mlp, "router") else mlp.gate
    is_normalised = declared(config, "norm_topk_prob", True)  # Mixtral and gpt-oss: always
    return SparseMlp(
        router.weight, _experts(mlp.experts), config.num_experts_per_tok, is_normalised, norm, act,
        ops, getattr(router, "bias", None),
    )  # fmt: skip


def _experts(module: Any) -> Experts:
    """The experts of a layer.

    gpt-oss stores them transposed. They are copied, and its module keeps views of the copies.
    """
    if not hasattr(module, "gate_up_proj_bias"):
        return Experts(module.gate_up_proj, module.down_proj)
    gate_up = module.gate_up_proj.detach().transpose(1, 2).contiguous()
    down = module.down_proj.detach().transpose(1, 2).contiguous()
    module.gate_up_proj = nn.Parameter(gate_up.transpose(1, 2), requires_grad=False)
    module.down_proj = nn.Parameter(down.transpose(1, 2), requires_grad=False)
    clamp = Clamp(module.alpha, module.limit)
    return Experts(gate_up, down, module.gate_up_proj_bias, module.down_proj_bias, clamp)


def _rope_types(parameters: Any) -> set[str]:
    """The types of rotary embeddings in a config. There may be several, by kind of attention."""
    by_kind = [setting for setting in parameters.values() if isinstance(setting, dict)]
    return {rope.get("rope_type", "default") for rope in by_kind or [parameters]}
