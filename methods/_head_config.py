"""Published layouts of heads with decoder layers: key names and config fields, as one form.

The internal form has flat fields, and keys `layers.{i}.`, `fc`, `norm`, `lm_head` and so on. Every
field that changes the arithmetic is honoured or refused by name.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import LlamaConfig, Qwen3Config

from specbench.errors import UserError
from specbench.methods._checkpoint import Checkpoint

LAYERS = "eagle_aux_hidden_state_layer_ids"

_LAYOUTS = (
    # layout, a field of its config.json, how some of its keys begin
    ("speculators", "speculators_model_type", "layers."),
    ("ModelOpt", "eagle_config", "layers."),
    ("z-lab", "dflash_config", "layers."),
    ("AutoModel or vLLM", "", "model."),
    ("SafeAILab", "", "midlayer."),  # SpecForge and AngelSlim too
    ("SafeAILab", "", "layers."),
)
_SECTIONS = ("model", "transformer_layer_config")
"""Objects in config.json whose fields count as its own: of vLLM and speculators."""

_RENAMED = (("model.", ""), ("midlayer.", "layers.0."))
"""Beginnings of published keys, and of the internal ones."""

_COMPUTED: dict[str, Any] = {
    "attention_multiplier": None,
    "attn_logit_softcapping": None,
    "embedding_multiplier": 1,
    "final_logit_softcapping": None,
    "is_causal": True,
    "logit_scale": 1,
    "logits_scaling": 1,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_drafting": False,
    "partial_rotary_factor": 1,
    "quantization_config": None,
    "query_pre_attn_scalar": None,
    "residual_multiplier": 1,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "use_sliding_window": False,
}
"""The values that a draft model computes if its format names no others. Others are refused."""

SWITCHES = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
"""Fields that EAGLE-3 computes either way; False if absent."""

_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles do not depend on the sequence's length."""

_LAYER_CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
"""Decoder layers of speculators, whose files leave out a class's default values.

Those of qwen3 have norms of queries and keys.
"""


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """The fields that one kind of head may have.

    `name` is its name in speculators. `section` is the object of config.json whose fields count as
    its own; of these, `section_fields` are read elsewhere or describe parts that must be absent.
    `switches` may have any value, and `computed` replaces values of other fields.
    """

    name: str | None = None
    section: str = "eagle_config"
    section_fields: Collection[str] = (LAYERS, "parallel_draft_heads_num_layers")
    switches: Collection[str] = ()
    computed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """A head's config in the internal form."""

    layout: str
    fields: Mapping[str, Any]
    num_layers: int
    nested_layers: Any = None
    """Target layers that the format's section names for `LAYERS`."""

    @property
    def layer_names(self) -> list[str]:
        """The names of its decoder layers in internal keys."""
        return [f"layers.{i}" for i in range(self.num_layers)]


EAGLE = HeadFormat()


def read_config(checkpoint: Checkpoint, head_format: HeadFormat = EAGLE) -> HeadConfig:
    """The config of a head, whose keys get their internal names.

    Raises:
        CheckpointError: a field asks for other arithmetic, or contradicts the tensors.
    """
    raw = checkpoint.config()
    layout = next((name for name, *sign in _LAYOUTS if _has(checkpoint, raw, *sign)), "unknown")
    checkpoint.rename(*_RENAMED)
    names = (*_SECTIONS, head_format.section)
    sections = {name: raw[name] for name in names if raw.get(name) is not None}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise checkpoint.error(f"has a config whose {name} is not a JSON object")
    if layout == "speculators":
        section = sections.get("transformer_layer_config", {})
        sections["transformer_layer_config"] = _of_speculators(
            checkpoint, raw, section, head_format
        )
    nested = sections.get(head_format.section, {})
    fixed = {**_COMPUTED, **{name: False for name in SWITCHES if name not in head_format.switches}}
    fixed |= head_format.computed
    if unknown := sorted(nested.keys() - fixed.keys() - {*SWITCHES, *head_format.section_fields}):
        raise checkpoint.error(f"has {head_format.section}.{unknown[0]}, which is not supported")
    _check(checkpoint, "", raw, fixed)
    fields = {name: value for name, value in raw.items() if name not in sections}
    for name, section in sections.items():
        _check(checkpoint, f"{name}.", section, fixed)
        for switch in SWITCHES:
            if fields.get(switch, section.get(switch)) != section.get(switch, fields.get(switch)):
                raise checkpoint.error(f"has {switch} twice in its config, with different values")
        fields |= {key: value for key, value in section.items() if key != LAYERS}
    for switch in SWITCHES:
        if fields.get(switch) not in (None, True, False):
            raise checkpoint.error(f"has {switch} {fields[switch]!r}, which is not supported")
    if fields.get("fc_norm") and fields.get("norm_before_fc"):
        raise checkpoint.error("has fc_norm and norm_before_fc, but only one of them can be used")
    _check_attention(checkpoint, fields)
    num_layers = checkpoint.count(lambda i: f"layers.{i}.self_attn.q_proj.weight")
    named = fields.get("num_hidden_layers")
    if num_layers and named not in (None, num_layers):
        raise checkpoint.error(
            f"has num_hidden_layers {named!r} in its config, but {num_layers} in its file"
        )
    return HeadConfig(layout, fields, max(num_layers, 1), nested.get(LAYERS))


def is_on(checkpoint: Checkpoint, head: HeadConfig, switch: str, key: str) -> bool:
    """True if the config asks for a part, or does not mention it and the file has its `key`."""
    value = head.fields.get(switch)
    return key in checkpoint if value is None else bool(value)


def _has(checkpoint: Checkpoint, raw: Mapping[str, Any], field: str, prefix: str) -> bool:
    return (not field or field in raw) and any(key.startswith(prefix) for key in checkpoint)


def _check(
    checkpoint: Checkpoint, prefix: str, section: Mapping[str, Any], fixed: Mapping[str, Any]
) -> None:
    """Refuse a field that asks for something that is not computed."""
    for key in sorted(section.keys() & fixed.keys()):
        if section[key] not in (None, fixed[key]):
            raise checkpoint.error(f"has {prefix}{key} {section[key]!r}, which is not supported")


def _check_attention(checkpoint: Checkpoint, fields: Mapping[str, Any]) -> None:
    """Refuse windows, and rotary embeddings of a part of a head, by layer or by length."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = fields.get(name) or {}
        if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
            raise checkpoint.error(f"has {name} {rope!r}, which are not supported")
        _check(checkpoint, f"{name}.", rope, {"partial_rotary_factor": 1})
        if (kind := rope.get("rope_type", rope.get("type", "default"))) not in _ROPES:
            raise checkpoint.error(f"has {name} of type {kind!r}, not of {', '.join(_ROPES)}")
        named = (rope.get("rope_theta"), fields.get("rope_theta"))
        thetas = {theta for theta in named if theta is not None}
        if len(thetas) > 1:
            raise checkpoint.error(f"has two values of rope_theta, {sorted(thetas)}")
    kinds = set(fields.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise checkpoint.error(f"has layer_types {sorted(kinds)}, which are not supported")


def _of_speculators(
    checkpoint: Checkpoint, raw: Mapping[str, Any], section: Mapping[str, Any],
    head_format: HeadFormat,
) -> dict[str, Any]:  # fmt: skip
    """The whole config of its decoder layers. Refuses other heads, and layers of other models."""
    name = "speculators_model_type"
    if raw[name] != head_format.name:
        raise checkpoint.error(f"has {name} {raw[name]!r}, which is not supported")
    if head_format.switches and raw.get("norm_before_residual") is None:
        raise checkpoint.error(
            "names no norm_before_residual, which speculators and vLLM then set differently"
        )
    layer = section.get("model_type", "qwen3")
    if layer not in _LAYER_CONFIGS:
        raise checkpoint.error(f"has layers of model_type {layer!r}, not of {[*_LAYER_CONFIGS]}")
    if layer == "qwen3":
        checkpoint.shape("layers.0.self_attn.q_norm.weight")
    with checkpoint.config_errors("layers"):
        return dict(_LAYER_CONFIGS[layer](**section).to_dict())


def captured_layers(
    checkpoint: Checkpoint, head: HeadConfig, num_layers: int, chosen: str = ""
) -> tuple[int, ...]:
    """Target layers whose inputs form EAGLE-3's features, in increasing order.

    `chosen`, such as "2+16+29", overrides the config. A flat list in the config counts inputs of
    layers (0 is the first layer's), as in vLLM. Publishers of nested ones disagree: a list of the
    formula's layers counts as the formula does, by inputs or by outputs, and one with the number of
    layers by inputs (gpt-oss: the last layer's output is the next one's input). Others need
    `chosen`.
    """
    formula = [2, num_layers // 2, num_layers - 3]
    nested = head.nested_layers
    layers = _parsed(chosen) or head.fields.get(LAYERS)
    if not layers and nested:
        layers = nested
        if nested == [layer - 1 for layer in formula]:
            layers = formula
        elif nested != formula and isinstance(nested, list) and num_layers not in nested:
            raise _ambiguous(checkpoint, nested)
    layers = layers or formula
    is_valid = isinstance(layers, list) and all(
        isinstance(layer, int) and 0 <= layer <= num_layers for layer in layers
    )
    if not is_valid or len(set(layers)) < len(layers):
        raise checkpoint.error(
            f"reads the inputs of target layers {layers}, but they must be distinct and at most "
            f"{num_layers} (option layers, or {LAYERS} in its config, can name others)"
        )
    return tuple(sorted(layers))


def _ambiguous(checkpoint: Checkpoint, layers: list[Any]) -> UserError:
    inputs = "+".join(map(str, layers))
    outputs = "+".join(str(layer + 1) for layer in layers if isinstance(layer, int))
    error = checkpoint.error(
        f"names target layers {layers} in eagle_config.{LAYERS}, and publishers disagree whether "
        "such a list counts inputs or outputs"
    )
    error.hint = (
        f"Name the layers by their inputs: layers={inputs} if the list does so, layers={outputs} "
        "if it names outputs (the head then accepts more tokens)."
    )
    return error


def _parsed(chosen: str) -> list[int]:
    try:
        return [int(layer) for layer in chosen.split("+")] if chosen else []
    except ValueError as error:
        raise UserError(
            f"layers={chosen!r} is not a list of layers.", "Write it like layers=2+16+29."
        ) from error
