"""Convert the published layouts of heads with decoder layers to one internal form.

The internal form has flat fields, and keys `layers.{i}.`, `fc`, `norm`, `lm_head` and so on.
A field is read, has no known effect, is refused by name, or is reported as unknown. `_head_fields`
lists the fields.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from transformers import LlamaConfig, Qwen3Config

from specbench.methods._head_fields import (
    COMPUTED,
    READ,
    ROPE_FIELDS,
    check_kind,
    check_switches,
    check_target,
    check_values,
    one_value,
    unknown_fields,
)
from specbench.methods.shared.checkpoint import Checkpoint

LAYERS = "eagle_aux_hidden_state_layer_ids"
"""The field of a config that names the target layers whose inputs form EAGLE-3's features."""


class _LayoutPattern(NamedTuple):
    """A publisher's layout, and how to recognise a checkpoint in this layout."""

    name: str
    field: str
    """A field that config.json must have, or "" if no field shows the layout."""
    prefix: str
    """The name of at least one tensor begins with this."""

    def matches(self, checkpoint: Checkpoint, raw: Mapping[str, Any]) -> bool:
        """True if a checkpoint with the config `raw` has this layout."""
        if self.field and self.field not in raw:
            return False
        return any(key.startswith(self.prefix) for key in checkpoint)


_LAYOUT_PATTERNS = (
    _LayoutPattern("speculators", "speculators_model_type", "layers."),
    _LayoutPattern("ModelOpt", "eagle_config", "layers."),
    _LayoutPattern("z-lab", "dflash_config", "layers."),
    _LayoutPattern("AutoModel or vLLM", "", "model."),
    _LayoutPattern("SafeAILab", "", "midlayer."),  # SpecForge and AngelSlim too
    _LayoutPattern("SafeAILab", "", "layers."),
)
"""Layouts in the order in which they are tried. A checkpoint has the first layout that matches."""
_SECTIONS = ("model", "transformer_layer_config")
"""Objects in the config.json of vLLM and speculators. Their fields count as top-level fields."""

_RENAMED = (("model.", ""), ("midlayer.", "layers.0."))
"""Prefixes of published keys, and the internal prefixes that replace them."""

SWITCHES = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
"""Fields that may be true or false for EAGLE-3. A missing field is false."""

_ROPE_NAMES = ("rope_parameters", "rope_scaling")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles do not depend on the sequence's length."""

_LAYER_CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
"""Config classes of speculators' decoder layers, by model_type. Files leave out their defaults.

Only the layers of qwen3 have norms of queries and keys.
"""

_WHOLE_HEAD_FIELDS = ("vocab_size", "tie_word_embeddings")
"""Fields that are read from a layer's config only if it states them and the top level does not.

The defaults of the config class say nothing about the head.
"""


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """The fields that one kind of head may have.

    `kind` is the head's name in `check_kind`, and `name` is its name in speculators. Fields of the
    object `section` in config.json count as top-level fields. `reads` are fields in addition to the
    common ones. `switches` are the `SWITCHES` that may be true. `computed` overrides values of
    `COMPUTED`.
    """

    kind: str = "eagle"
    name: str | None = None
    section: str = "eagle_config"
    reads: Collection[str] = ("parallel_draft_heads_num_layers",)
    switches: Collection[str] = ()
    computed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fixed(self) -> dict[str, Any]:
        """Fields with a single supported value, and that value."""
        off = {name: False for name in SWITCHES if name not in self.switches}
        computed = {**COMPUTED, LAYERS: None, **off, **self.computed}
        return {name: setting for name, setting in computed.items() if name not in self.reads}


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """A head's config in the internal form."""

    layout: str
    fields: Mapping[str, Any]
    num_layers: int
    nested_layers: Any = None
    """The value of `LAYERS` in the format's section, or None if the section has none."""
    num_positions: int = 0
    """The number of positions that the config itself states, or 0 if it states none."""

    @property
    def layer_names(self) -> list[str]:
        """The names of the head's decoder layers in internal keys."""
        return [f"layers.{i}" for i in range(self.num_layers)]

    @property
    def names_layers(self) -> bool:
        """True if the config names the target layers of EAGLE-3's features."""
        return bool(self.fields.get(LAYERS) or self.nested_layers)

    def with_rope_theta(self, theta: float | None) -> "HeadConfig":
        """The config with another rotary base. None changes nothing."""
        if theta is None:
            return self
        fields = {**self.fields, "rope_theta": theta}
        for name in _ROPE_NAMES:
            if rope := self.fields.get(name):
                fields[name] = {**rope, "rope_theta": theta}
        return replace(self, fields=fields)


EAGLE = HeadFormat()


def read_config(checkpoint: Checkpoint, head_format: HeadFormat = EAGLE) -> HeadConfig:
    """Read the config of a head, and rename the checkpoint's keys to internal keys.

    Raises:
        CheckpointError: a field asks for arithmetic that is not supported, or contradicts another
            field, the tensors or the target.
    """
    raw = checkpoint.config()
    matching = (pattern.name for pattern in _LAYOUT_PATTERNS if pattern.matches(checkpoint, raw))
    layout = next(matching, "unknown")
    has_one_layer = any(".midlayer." in f".{key}" for key in checkpoint)
    checkpoint.rename(*_RENAMED)
    check_kind(checkpoint, raw, head_format.kind)
    section_names = (*_SECTIONS, head_format.section)
    sections = {name: raw[name] for name in section_names if raw.get(name) is not None}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise checkpoint.error(f"has a config whose {name} is not a JSON object")
    stated_objects = [raw, *sections.values()]  # without the defaults of a class
    if layout == "speculators":
        section = sections.get("transformer_layer_config", {})
        sections["transformer_layer_config"] = _speculators_layer_config(
            checkpoint, raw, section, head_format
        )
    fixed = head_format.fixed
    nested = sections.get(head_format.section, {})
    supported = {*fixed, *SWITCHES, LAYERS, *head_format.reads}
    if unknown := sorted(nested.keys() - supported):
        raise checkpoint.error(f"has {head_format.section}.{unknown[0]}, which is not supported")
    objects = {"": {name: raw[name] for name in raw if name not in sections}}  # by prefix
    objects |= {f"{name}.": section for name, section in sections.items()}
    for prefix, section in objects.items():
        check_values(checkpoint, prefix, section, fixed)
    fields = _merged(checkpoint, objects, head_format)
    _check_fields(checkpoint, fields, head_format)
    num_layers = checkpoint.count(lambda i: f"layers.{i}.self_attn.q_proj.weight")
    named = fields.get("num_hidden_layers")
    if num_layers and named not in (None, num_layers):
        problem = f"has num_hidden_layers {named!r} in its config, but {num_layers} in its file"
        if not has_one_layer:
            raise checkpoint.error(problem)
        checkpoint.notes.append(f"Its checkpoint {problem}: the layer in the file is used.")
    stated = [section.get("max_position_embeddings") for section in stated_objects]
    num_positions = next((length for length in stated if type(length) is int), 0)
    return HeadConfig(layout, fields, max(num_layers, 1), nested.get(LAYERS), num_positions)


def _merged(
    checkpoint: Checkpoint, objects: Mapping[str, Mapping[str, Any]], head_format: HeadFormat
) -> dict[str, Any]:
    """The fields of all objects of a config, which must not contradict each other.

    The keys of `objects` are prefixes for the names of fields in errors. `LAYERS` is read only from
    the top level, because publishers count layers differently in their sections.
    """
    fields: dict[str, Any] = {}
    for section in objects.values():
        fields |= section
    comparable = {*READ.split(), *SWITCHES, *head_format.reads} - {"architectures", LAYERS}
    for name in sorted(fields.keys() & comparable):
        named = {f"{prefix}{name}": section.get(name) for prefix, section in objects.items()}
        fields[name] = one_value(checkpoint, named)
    return {**fields, LAYERS: objects[""].get(LAYERS)}


def _check_fields(checkpoint: Checkpoint, fields: dict[str, Any], head_format: HeadFormat) -> None:
    """Refuse fields that contradict each other, the tensors or the target. Note unknown fields."""
    for switch in SWITCHES:
        if fields.get(switch) not in (None, True, False):
            raise checkpoint.error(f"has {switch} {fields[switch]!r}, which is not supported")
    if fields.get("fc_norm") and fields.get("norm_before_fc"):
        raise checkpoint.error("has fc_norm and norm_before_fc, but only one of them can be used")
    acts = {name: fields.get(name) for name in ("hidden_act", "hidden_activation")}
    fields["hidden_act"] = one_value(checkpoint, acts)
    _check_attention(checkpoint, fields)
    check_switches(checkpoint, fields)
    check_target(checkpoint, fields)
    understood = {*SWITCHES, *_SECTIONS, *head_format.reads, *head_format.fixed, LAYERS}
    understood.add(head_format.section)
    if fields.get("use_sliding_window") is not None:  # refused if it is true
        understood.add("sliding_window")
    if unknown := unknown_fields(fields, understood):
        checkpoint.notes.append(
            f"Its config has unknown fields: {', '.join(unknown)}. If one of them changes what the "
            "head computes, fewer of its tokens are accepted."
        )


def is_on(checkpoint: Checkpoint, head: HeadConfig, switch: str, key: str) -> bool:
    """True if the config turns `switch` on. If not, a file with the tensor `key` is refused."""
    is_asked_for = bool(head.fields.get(switch))
    if not is_asked_for and key in checkpoint:
        name = checkpoint.published(key)
        raise checkpoint.error(f"has {name}, but its config does not switch {switch} on")
    return is_asked_for


def _check_attention(checkpoint: Checkpoint, fields: Mapping[str, Any]) -> None:
    """Refuse attention windows, and rotary embeddings that are not supported.

    Such embeddings rotate a part of each head, differ by layer, or depend on the sequence's length.
    """
    without_base: dict[str, Any] = {}
    for name in _ROPE_NAMES:
        rope = fields.get(name) or {}
        is_flat = isinstance(rope, dict) and not any(isinstance(v, dict) for v in rope.values())
        if not is_flat:
            raise checkpoint.error(f"has {name} {rope!r}, which are not supported")
        check_values(checkpoint, f"{name}.", rope, {"partial_rotary_factor": 1})
        if unknown := sorted(rope.keys() - {*ROPE_FIELDS.split()}):
            raise checkpoint.error(f"has {name}.{unknown[0]}, which is not supported")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default" and rope.get("factor") not in (None, 1):
            raise checkpoint.error(f"has {name}.factor {rope['factor']!r} without a rope_type")
        if kind not in _ROPE_TYPES:
            raise checkpoint.error(
                f"has {name} of type {kind!r}; known types are {', '.join(_ROPE_TYPES)}"
            )
        bases = [rope.get("rope_theta"), fields.get("rope_theta")]
        if None not in bases and bases[0] != bases[1]:
            raise checkpoint.error(f"has two values of rope_theta, {bases}")
        if rope:
            compared = rope.keys() - {"rope_theta", "rope_type", "type"}
            without_base[name] = {**{key: rope[key] for key in compared}, "rope_type": kind}
    one_value(checkpoint, without_base)
    kinds = fields.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise checkpoint.error(f"has layer_types {kinds!r}, which are not supported")


def _speculators_layer_config(
    checkpoint: Checkpoint, raw: Mapping[str, Any], section: Mapping[str, Any],
    head_format: HeadFormat,
) -> dict[str, Any]:  # fmt: skip
    """Fields of the decoder layers, with defaults. Refuses unsupported heads and layers."""
    kind = raw["speculators_model_type"]
    if kind != head_format.name:
        raise checkpoint.error(f"has speculators_model_type {kind!r}, which is not supported")
    if head_format.switches and raw.get("norm_before_residual") is None:
        raise checkpoint.error(
            "does not set norm_before_residual, for which speculators and vLLM have different "
            "defaults"
        )
    layer = section.get("model_type", "qwen3")
    if layer not in _LAYER_CONFIGS:
        known = ", ".join(_LAYER_CONFIGS)
        raise checkpoint.error(f"has layers of model_type {layer!r}; known types are {known}")
    has_norms = "layers.0.self_attn.q_norm.weight" in checkpoint
    if has_norms != (layer == "qwen3"):
        verb = "has" if has_norms else "lacks"
        raise checkpoint.error(f"{verb} layers.0.self_attn.q_norm.weight for {layer} layers")
    with checkpoint.config_errors("layers"):
        with_defaults = dict(_LAYER_CONFIGS[layer](**section).to_dict())
    left_out = {name for name in _WHOLE_HEAD_FIELDS if name not in section or name in raw}
    return {name: value for name, value in with_defaults.items() if name not in left_out}
