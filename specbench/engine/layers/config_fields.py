"""Fields of a model's config, as far as the model's class reads them.

transformers keeps every field of config.json, also those of other classes.
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
"""Fields that some classes have, and that the engine or transformers' masks and caches read."""


def declared(config: Any, name: str, default: Any = None) -> Any:
    """A field of the config; the default if the config's class does not declare it."""
    return getattr(config, name, default) if _is_declared(config, name) else default


def undeclared_fields(config: Any) -> dict[str, Any]:
    """Fields of other classes that the config sets although its own class does not declare them."""
    fields = {name: getattr(config, name, None) for name in _OF_SOME_CLASSES}
    return {
        name: setting
        for name, setting in fields.items()
        if setting is not None and not _is_declared(config, name)
    }


def _is_declared(config: Any, name: str) -> bool:
    """True for a field of the config's class or, if the class is not a dataclass, an argument."""
    return hasattr(type(config), name) or name in inspect.signature(type(config)).parameters
