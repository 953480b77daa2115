"""The fields of a head's config.json: those that are read, refused, or without effect."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from specbench.methods.shared.checkpoint import Checkpoint

INERT = {
    "transformers": """
        _attn_implementation _name_or_path add_cross_attention attention_dropout auto_map
        bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
        cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
        early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
        finetuning_task forced_bos_token_id forced_eos_token_id id2label initializer_range
        is_decoder is_encoder_decoder label2id length_penalty max_length max_window_layers
        min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
        output_attentions output_hidden_states output_scores pad_token_id prefix pretraining_tp
        problem_type pruned_heads remove_invalid_values repetition_penalty return_dict
        return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature
        tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript
        transformers_version typical_p unk_token_id use_bfloat16 use_cache""",
    "SafeAILab": "max_sequence_length",
    "AngelSlim": """
        add_classification_head attention_backend attention_head_dim cla_share_factor class_num
        decoder_sparse_step dense_list eod_token_id im_end_id im_newline_id im_start_id
        image_end_token_id image_newline_token_id image_start_token_id image_token_id
        loss_decay_gamma mask_init_id modal_type num_anchors org_vocab_size output_router_logits
        pad_id pool_type router_aux_loss_coef text_end_id text_start_id video_token_id
        vision_end_token_id vision_start_token_id vision_token_id""",
    "speculators": """
        embed_requires_grad has_no_defaults_at_init speculators_config speculators_model_type
        speculators_version""",
    "vLLM": "num_lookahead_tokens num_speculative_tokens",
}
"""Fields that have no effect on a head's results, grouped by their first publisher."""

READ = """
    architectures attention_bias bias draft_vocab_size eagle_fc_bias head_dim hidden_act
    hidden_activation hidden_size intermediate_size layer_types max_position_embeddings mlp_bias
    num_attention_heads num_hidden_layers num_key_value_heads qk_norm qkv_bias rms_norm_eps
    rope_parameters rope_scaling rope_theta target_hidden_size target_model_type
    tie_word_embeddings truncated_vocab_size use_qk_norm vocab_size"""
"""Fields that any head with decoder layers may have. Each is used or checked."""

_COMPUTED = {
    "null": """
        attention_multiplier attn_logit_softcapping aux_hidden_state_layer_ids
        aux_hidden_states_layer_ids clip_qkv compression_config dim_model_base
        final_logit_softcapping quantization_config query_pre_attn_scalar rotary_dim scale_depth
        sliding_window_pattern target_layer_ids""",
    "false": """
        add_para_norm attention_sink gist_conditioning parallel_drafting rope_interleave
        shift_label use_aux_norm use_cla use_mrope use_mtp_layernorm use_sliding_window""",
    "true": """
        is_causal is_neox_style next_layer_regular rope_is_neox_style use_aux_hidden_state
        use_input_layernorm_in_first_layer use_last_layernorm use_rotary_pos_emb""",
    "1": """
        embedding_multiplier logit_scale logits_scaling parallel_draft_step
        partial_rotary_factor residual_multiplier rope_ratio rotary_pct scale_emb""",
    "[]": "no_rope_layers",
    '"rms"': "norm_type",
    '"rope"': "position_embedding_type",
}
COMPUTED = {
    name: json.loads(setting) for setting, names in _COMPUTED.items() for name in names.split()
}
"""Fields with a single supported value, apart from null. A kind of head may name another value.

All other values change the arithmetic for some publisher, and are refused.
"""

ROTATES_NEIGHBOURS = ("llama4", "llama4_text")
"""Values of ModelOpt's `target_model_type` whose heads rotate neighbours instead of halves."""

ROPE_FIELDS = """
    attention_factor beta_fast beta_slow factor high_freq_factor low_freq_factor mrope_interleaved
    mrope_section mscale mscale_all_dim original_max_position_embeddings partial_rotary_factor
    rope_theta rope_type truncate type"""
"""Fields of rope_parameters and rope_scaling. The fields of mrope have no effect on text."""

_TENSOR_SWITCHES = {
    "fc.bias": ("bias", "eagle_fc_bias"),
    "layers.0.self_attn.q_proj.bias": ("qkv_bias", "attention_bias"),
    "layers.0.mlp.gate_proj.bias": ("mlp_bias",),
    "layers.0.self_attn.q_norm.weight": ("qk_norm", "use_qk_norm"),
}
"""Optional tensors, each with the fields that say whether the file has it."""

_KINDS = ("dflare", "dflash", "domino", "dspark", "eagle", "hydra", "medusa", "mtp", "xpress")
"""Kinds of heads. The name of an architecture contains one of them, in upper or lower case."""


def one_value(checkpoint: Checkpoint, named: Mapping[str, Any]) -> Any:
    """The common value of fields that mean the same, or None if all of them are absent (None).

    Raises:
        CheckpointError: two fields have different values.
    """
    present = {field: setting for field, setting in named.items() if setting is not None}
    if not present:
        return None
    (field, setting), *others = present.items()
    for other_field, other_setting in others:
        if other_setting != setting:
            raise checkpoint.error(f"has {field} {setting!r}, but {other_field} {other_setting!r}")
    return setting


def check_values(
    checkpoint: Checkpoint, prefix: str, section: Mapping[str, Any], computed: Mapping[str, Any]
) -> None:
    """Refuse a field of `section` whose value is neither null nor its value in `computed`."""
    for key in sorted(section.keys() & computed.keys()):
        if section[key] is not None and section[key] != computed[key]:
            raise checkpoint.error(f"has {prefix}{key} {section[key]!r}, which is not supported")


def check_switches(checkpoint: Checkpoint, fields: Mapping[str, Any]) -> None:
    """Refuse a file that lacks a tensor that is switched on, or has one that is switched off."""
    for key, switches in _TENSOR_SWITCHES.items():
        present = [name for name in switches if fields.get(name) is not None]
        switched_on = [name for name in present if fields[name]]
        if present and bool(switched_on) != (key in checkpoint):
            name = (switched_on or present)[0]
            verb = "lacks" if switched_on else "has"
            raise checkpoint.error(
                f"{verb} {checkpoint.published(key)}, but {name} {fields[name]!r} in its config"
            )


def check_target(checkpoint: Checkpoint, fields: Mapping[str, Any]) -> None:
    """Refuse a config that describes another target."""
    target = checkpoint.target
    target_type = fields.get("target_model_type")
    if target_type in ROTATES_NEIGHBOURS:
        raise checkpoint.error(
            f"has target_model_type {target_type!r}, whose rotary embedding (of neighbouring "
            "dimensions) is not supported"
        )
    vocabulary = {name: fields.get(name) for name in ("vocab_size", "truncated_vocab_size")}
    one_value(checkpoint, {**vocabulary, "the target's vocabulary is": target.vocab_size})
    width = {"target_hidden_size": fields.get("target_hidden_size")}
    one_value(checkpoint, {**width, "the target's hidden_size is": target.config.hidden_size})
    verifier = _mapping(_mapping(fields.get("speculators_config")).get("verifier"))
    architecture = type(target.model).__name__
    family = architecture.partition("For")[0]
    for name in _name_list(verifier.get("architectures")):
        if name.partition("For")[0] != family:
            raise checkpoint.error(
                f"is for a verifier of architecture {name!r}, not {architecture!r}"
            )


def check_kind(checkpoint: Checkpoint, fields: Mapping[str, Any], kind: str) -> None:
    """Refuse a head whose architecture or tensors show that it is not of this kind."""
    for name in _name_list(fields.get("architectures")):
        kind_of_name = next((word for word in _KINDS if word in name.lower()), "")
        if kind_of_name and not kind.startswith(kind_of_name):
            raise checkpoint.error(f"is of architecture {name!r}, not a head of {kind}")
    if not any(key.startswith("layers.") for key in checkpoint):
        example = min(checkpoint, default="none")
        raise checkpoint.error(f"has no layers: its tensors have names like {example!r}")
    kind_of_tensors = _kind_of(checkpoint)
    if kind_of_tensors not in ("", kind):
        raise checkpoint.error(f"is a head of {kind_of_tensors}, not of {kind}")


def _kind_of(checkpoint: Checkpoint) -> str:
    """The kind of head that the tensors show, or "" if they do not show it."""
    if "hidden_norm.weight" in checkpoint:
        return "dflash"
    if "layers.0.hidden_norm.weight" in checkpoint:
        return "eagle3"
    if "fc.weight" not in checkpoint:
        return ""
    shape = checkpoint.shape("fc.weight")
    return "eagle" if len(shape) == 2 and shape[1] == 2 * shape[0] else ""


def unknown_fields(fields: Mapping[str, Any], understood: Collection[str]) -> list[str]:
    """The names of fields that have a value and are neither known nor `understood`."""
    inert = {name for names in INERT.values() for name in names.split()}
    present = {name for name, setting in fields.items() if setting is not None}
    return sorted(present - inert - {*READ.split()} - COMPUTED.keys() - {*understood})


def _mapping(setting: Any) -> Mapping[str, Any]:
    """The value of a field if it is a JSON object, or else an empty mapping."""
    return setting if isinstance(setting, dict) else {}


def _name_list(setting: Any) -> list[str]:
    """The elements of a field as strings if it is a JSON list, or else an empty list."""
    return list(map(str, setting)) if isinstance(setting, list) else []
