"""Recognise from config.json checkpoints that only look like language models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HEAD_KEYS = {
    "medusa_num_heads": "a Medusa head",
    "hydra_num_heads": "a Hydra head",
    "draft_vocab_size": "an EAGLE-3 head",
    "eagle_aux_hidden_state_layer_ids": "an EAGLE-3 head",
    "speculators_model_type": "a draft head in the format of speculators",
}
"""Keys of config.json that only heads have, each with its kind of head."""
_METHODS_OF_OTHERS = {
    "a Medusa head": {"eagle", "eagle2", "eagle3", "hydra"},
    "a Hydra head": {"eagle", "eagle2", "eagle3", "medusa"},
    "an EAGLE-3 head": {"eagle", "eagle2", "medusa", "hydra"},
}
"""Methods that cannot use a kind of head. Other methods, such as plug-ins, may use it."""
_HEAD_OPTION = {"a Medusa head": "medusa", "a Hydra head": "hydra", "an EAGLE-3 head": "eagle3"}
_ENCODERS = {
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra"),
    *("modernbert", "mpnet", "roberta", "xlm-roberta"),
}
"""The `model_type` of models that read text in both directions."""


def not_a_model(config: Mapping[str, Any], path: Path, *, has_tokenizer: bool) -> tuple[str, str]:
    """Say what a folder holds instead of a language model, with a hint; both are "" for a model.

    An EAGLE head has the config of a Llama with one layer, but no tokenizer.
    """
    model_type = str(config.get("model_type") or "")
    kind = _head_kind(config)
    if not kind and config.get("num_hidden_layers") == 1 and not has_tokenizer:
        kind = "an EAGLE head, or another draft of one layer"
    if kind:
        method = _HEAD_OPTION.get(kind, "eagle")
        return (
            f"holds {kind}, not a model",
            f"Give the target as --model, and the head as --method {method}:weights={path}.",
        )
    if model_type in _ENCODERS:
        return (
            f"holds a {model_type} model, which reads text in both directions and writes none",
            "Give a causal language model, such as Llama or Qwen3.",
        )
    return "", ""


def other_head(config: Mapping[str, Any], method: str) -> str:
    """Return the kind of head that a config describes if the method cannot use it, else ""."""
    kind = _head_kind(config)
    return kind if method in _METHODS_OF_OTHERS.get(kind, ()) else ""


def _head_kind(config: Mapping[str, Any]) -> str:
    """Return the kind of draft head that the keys of a config reveal, or "" if none does."""
    return next((kind for key, kind in _HEAD_KEYS.items() if key in config), "")
