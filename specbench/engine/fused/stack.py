"""The decoder stack of a Llama-family model, run layer by layer in few, large operations.

Knows the weights of transformers models and their arithmetic, not trees or methods.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from torch import Tensor
from torch.nn.functional import embedding
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mistral.modeling_mistral import MistralForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM

from specbench.engine.fused.chain import LayerChain
from specbench.engine.fused.experts import Experts
from specbench.engine.fused.layer import FusedLayer, Projections, Rotary, activation
from specbench.engine.fused.mlp import DenseMlp, Mlp, SparseMlp
from specbench.engine.fused.ops import CacheSlots, Norm, Ops, TreeMask
from specbench.engine.kv import KVCache
from specbench.engine.windows import attention_kinds

KNOWN = (
    LlamaForCausalLM, MistralForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
)  # fmt: skip
_FIXED_ROPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles do not depend on the sequence's length."""


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Reason that the model must run its own forward; None if the stack can run it."""
    if type(model) not in KNOWN:
        return f"{type(model).__name__} is run by transformers' own forward"
    if getattr(model.config, "quantization_config", None) is not None:
        return "quantised weights are read by transformers' own forward"
    rope = (model.config.rope_parameters or {}).get("rope_type", "default")
    if rope not in _FIXED_ROPES:
        return f"rotary embeddings of type {rope} depend on the length"
    if any(attention_kinds(model.config).values()):
        return "attention within a window is run by transformers' own forward"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "the model is spread over several devices"
    return None


class Stack:
    """Embedding, decoder layers and final norm of a supported model (see `unsupported_reason`).

    Same arithmetic as the model's own forward; rounding differs, because products are fused.
    """

    def __init__(self, model: PreTrainedModel, ops: Ops) -> None:
        base = model.model
        self._embedding = base.embed_tokens.weight
        self.rotary = Rotary(base.rotary_emb, self._embedding)
        self._norm = _norm(base.norm)
        self._layers = [_fused(layer, model.config, ops) for layer in base.layers]
        self._ops = ops
        head = model.get_output_embeddings().weight
        ops.prepare(LayerChain(self._layers, self._norm, head, ops))

    def first_layers(self, num_layers: int) -> Stack:
        """The same stack with only its first layers."""
        part = copy.copy(self)
        part._layers = self._layers[:num_layers]
        return part

    def __call__(
        self,
        ids: Tensor,
        cache: KVCache,
        slots: CacheSlots,
        tree_mask: TreeMask | None,
        wanted: Collection[int],
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run over tokens [n]; returns hidden states [n, hidden] and inputs of `wanted` layers.

        The number after the last layer's stands for its output, before the final norm.
        """
        x = embedding(ids, self._embedding)
        inputs: dict[int, Tensor] = {}
        for index, (norm, layer) in enumerate(self._layers):
            if index in wanted:
                inputs[index] = x.clone()  # the layers work in place
            cached = cache.rows(index)
            queries = layer.write_kv(x, cached, slots, norm)
            x = layer.mlp(layer.attend(x, queries, cached, tree_mask))
        if len(self._layers) in wanted:
            inputs[len(self._layers)] = x
        return self._ops.norm(x, self._norm), inputs


def _fused(layer: Any, config: Any, ops: Ops) -> tuple[Norm, FusedLayer]:
    attention = layer.self_attn
    parts = Projections(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    head_norms = None
    if hasattr(attention, "q_norm"):  # Qwen3
        head_norms = (_norm(attention.q_norm), _norm(attention.k_norm))
    mlp = _mlp(layer.mlp, config, _norm(layer.post_attention_layernorm), ops)
    fused = FusedLayer(parts, mlp, attention.head_dim, ops, head_norms)
    return _norm(layer.input_layernorm), fused


def _mlp(mlp: Any, config: Any, norm: Norm, ops: Ops) -> Mlp:
    act = activation(config.hidden_act)
    if not hasattr(mlp, "experts"):
        return DenseMlp(mlp.gate_proj, mlp.up_proj, mlp.down_proj, norm, act, ops)
    experts = Experts(mlp.experts.gate_up_proj, mlp.experts.down_proj)
    is_normalised = getattr(config, "norm_topk_prob", True)  # Mixtral always does
    return SparseMlp(
        mlp.gate.weight, experts, config.num_experts_per_tok, is_normalised, norm, act, ops
    )


def _norm(module: Any) -> Norm:
    return Norm(module.weight, module.variance_epsilon)
