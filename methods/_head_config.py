"""Published layouts of heads with decoder layers: key names and config fields, as one form.

The internal form has flat fields, and keys `layers.{i}.`, `fc`, `norm`, `lm_head` and so on.
Every field is honoured, known to have no effect, refused by name, or reported as unknown;
`_head_fields` lists them.
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


class _Layout(NamedTuple):
    """How the files of a publisher are recognised."""

    name: str
    field: str
    """A field of its config.json; empty if none is its own."""
    prefix: str
    """How some of its keys begin."""

    def matches(self, checkpoint: Checkpoint, raw: Mapping[str, Any]) -> bool:
        """True if a checkpoint with the config `raw` has this layout."""
        if self.field and self.field not in raw:
            return False
        return any(key.startswith(self.prefix) for key in checkpoint)


_LAYOUTS = (
    _Layout("speculators", "speculators_model_type", "layers."),
    _Layout("ModelOpt", "eagle_config", "layers."),
    _Layout("z-lab", "dflash_config", "layers."),
    _Layout("AutoModel or vLLM", "", "model."),
    _Layout("SafeAILab", "", "midlayer."),  # SpecForge and AngelSlim too
    _Layout("SafeAILab", "", "layers."),
)
"""The first that matches is a checkpoint's layout."""
_SECTIONS = ("model", "transformer_layer_config")
"""Objects in config.json whose fields count as its own: of vLLM and speculators."""

_RENAMED = (("model.", ""), ("midlayer.", "layers.0."))
"""Beginnings of published keys, and of the internal ones."""

SWITCHES = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
"""Fields that EAGLE-3 computes either way; False if absent."""

_ROPE_NAMES = ("rope_parameters", "rope_scaling")
_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles do not depend on the sequence's length."""

_LAYER_CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
"""Decoder layers of speculators, whose files leave out a class's default values.

Those of qwen3 have norms of queries and keys.
"""


_OF_THE_HEAD = ("vocab_size", "tie_word_embeddings")
"""Fields of a layer's config that count only if they are written out, and nowhere above it."""


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """The fields that one kind of head may have.

    `kind` is the method that runs it, and `name` its name in speculators. `section` is the
    object of config.json whose fields count as its own. `reads` are fields that it has besides
    the common ones, `switches` are the fields among them that may be true or false, and
    `computed` replaces values of `COMPUTED`.
    """

    kind: str = "eagle"
    name: str | None = None
    section: str = "eagle_config"
    reads: Collection[str] = ("parallel_draft_heads_num_layers",)
    switches: Collection[str] = ()
    computed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fixed(self) -> dict[str, Any]:
        """The value of each field that only one arithmetic is known for."""
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
    """Target layers that the format's section names for `LAYERS`."""

    @property
    def layer_names(self) -> list[str]:
        """The names of its decoder layers in internal keys."""
        return [f"layers.{i}" for i in range(self.num_layers)]

    @property
    def names_layers(self) -> bool:
        """True if the config names the target layers of EAGLE-3's features."""
        return bool(self.fields.get(LAYERS) or self.nested_layers)

    def with_rope_theta(self, theta: float | None) -> "HeadConfig":
        """The config with another rotary base; None changes nothing."""
        if theta is None:
            return self
        fields = {**self.fields, "rope_theta": theta}
        for name in _ROPE_NAMES:
            if rope := self.fields.get(name):
                fields[name] = {**rope, "rope_theta": theta}
        return replace(self, fields=fields)


EAGLE = HeadFormat()


def read_config(checkpoint: Checkpoint, head_format: HeadFormat = EAGLE) -> HeadConfig:
    """The config of a head, whose keys get their internal names.

    Raises:
        CheckpointError: a field asks for other arithmetic, or contradicts another one, the tensors
            or the target.
    """
    raw = checkpoint.config()
    matching = (layout.name for layout in _LAYOUTS if layout.matches(checkpoint, raw))
    layout = next(matching, "unknown")
    has_one_layer = any(".midlayer." in f".{key}" for key in checkpoint)
    checkpoint.rename(*_RENAMED)
    check_kind(checkpoint, raw, head_format.kind)
    section_names = (*_SECTIONS, head_format.section)
    sections = {name: raw[name] for name in section_names if raw.get(name) is not None}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise checkpoint.error(f"has a config whose {name} is not a JSON object")
    if layout == "speculators":
        section = sections.get("transformer_layer_config", {})
        sections["transformer_layer_config"] = _of_speculators(
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
    return HeadConfig(layout, fields, max(num_layers, 1), nested.get(LAYERS))


def _merged(
    checkpoint: Checkpoint, objects: Mapping[str, Mapping[str, Any]], head_format: HeadFormat
) -> dict[str, Any]:
    """The fields of all objects of a config, which must not contradict each other.

    `objects` are by the prefix of their fields' names in errors. Target layers are left out:
    publishers count them differently in their section.
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
    """Refuse fields that contradict each other, the tensors or the target; note unknown ones."""
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
            f"Its config has fields that are not known: {', '.join(unknown)}. If one of them "
            "changes what the head computes, it accepts fewer tokens than it could."
        )


def is_on(checkpoint: Checkpoint, head: HeadConfig, switch: str, key: str) -> bool:
    """True if the config asks for a part. Refuses a `key` of a part that it does not ask for."""
    is_asked_for = bool(head.fields.get(switch))
    if not is_asked_for and key in checkpoint:
        name = checkpoint.published(key)
        raise checkpoint.error(f"has {name}, but its config does not switch {switch} on")
    return is_asked_for


def _check_attention(checkpoint: Checkpoint, fields: Mapping[str, Any]) -> None:
    """Refuse windows, and rotary embeddings of a part of a head, by layer or by length."""
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
        if kind not in _ROPES:
            raise checkpoint.error(f"has {name} of type {kind!r}, not of {', '.join(_ROPES)}")
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


def _of_speculators(
    checkpoint: Checkpoint, raw: Mapping[str, Any], section: Mapping[str, Any],
    head_format: HeadFormat,
) -> dict[str, Any]:  # fmt: skip
    """The whole config of its decoder layers. Refuses other heads, and layers of other models."""
    kind = raw["speculators_model_type"]
    if kind != head_format.name:
        raise checkpoint.error(f"has speculators_model_type {kind!r}, which is not supported")
    if head_format.switches and raw.get("norm_before_residual") is None:
        raise checkpoint.error(
            "names no norm_before_residual, which speculators and vLLM then set differently"
        )
    layer = section.get("model_type", "qwen3")
    if layer not in _LAYER_CONFIGS:
        raise checkpoint.error(f"has layers of model_type {layer!r}, not of {[*_LAYER_CONFIGS]}")
    has_norms = "layers.0.self_attn.q_norm.weight" in checkpoint
    if has_norms != (layer == "qwen3"):
        verb = "has" if has_norms else "lacks"
        raise checkpoint.error(f"{verb} layers.0.self_attn.q_norm.weight for {layer} layers")
    with checkpoint.config_errors("layers"):
        with_defaults = dict(_LAYER_CONFIGS[layer](**section).to_dict())
    left_out = {name for name in _OF_THE_HEAD if name not in section or name in raw}
    return {name: value for name, value in with_defaults.items() if name not in left_out}
