"""Separate the config fields that a model's class declares from those that it ignores.

transformers keeps every field of config.json, even the fields of other classes.
"""

import inspect
from typing import Any

_OF_SOME_CLASSES = (
    "attention_chunk_size",
    "attn_logit_softcapping",
    "attn_temperature_tuning",
    "final_logit_softcapping",
    "hidden_activation",
    "layer_types",
    "norm_topk_prob",
    "sliding_window",
    "use_sliding_window",
)
"""Fields that only some classes declare, but the engine or transformers' masks or caches read."""


def declared(config: Any, name: str, default: Any = None) -> Any:
    """A field of the config, or the default if the config's class does not declare it."""
    return getattr(config, name, default) if _is_declared(config, name) else default


def undeclared_fields(config: Any) -> dict[str, Any]:
    """The fields that the config sets although its class does not declare them, by name."""
    fields = {name: getattr(config, name, None) for name in _OF_SOME_CLASSES}
    return {
        name: setting
        for name, setting in fields.items()
        if setting is not None and not _is_declared(config, name)
    }


def _is_declared(config: Any, name: str) -> bool:
    """True if the config's class has this field, or takes an argument of this name."""
    return hasattr(type(config), name) or name in inspect.signature(type(config)).parameters
