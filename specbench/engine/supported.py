"""Refuse models that the engine cannot run, and weights that do not fit their config."""

import inspect
import re
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedModel, __version__

from specbench.engine.layers.config_fields import declared, undeclared_fields
from specbench.engine.layers.torch_attention import (
    CHUNKED,
    FULL,
    RECURRENT,
    SLIDING,
    attention_kinds,
)
from specbench.engine.probe import tree_fault
from specbench.engine.target import Target
from specbench.engine.weight_files import find_weights, holders_text, unlisted_names
from specbench.errors import CheckpointError, few, printable

_CAUSAL = """
    Apertus Arcee BioGpt CodeGen Cohere2 Cohere Cwm DeepseekV2 DeepseekV3 Ernie4_5 Ernie4_5_Moe
    Exaone4 Falcon GPTBigCode GPTJ GPTNeoX Gemma2 Gemma3 Gemma4 Gemma Glm4 Glm4Moe Glm4MoeLite
    Glm GptOss Granite GraniteMoe GraniteSWA Helium HunYuanDenseV1 HunYuanMoEV1 Llama4 Llama
    MiMoV2Flash MiniMaxM2 Ministral3 Ministral Mistral Mixtral Nemotron OPT Olmo2 Olmo3 Olmo
    Persimmon Phi3 Phi Phimoe Qwen2 Qwen2Moe Qwen3 Qwen3Moe SeedOss SmolLM3 StableLm Starcoder2"""
_OTHERS = "GPT2LMHeadModel Gemma3ForConditionalGeneration Gemma4ForConditionalGeneration"
_CAUSAL_CLASSES = [f"{name}ForCausalLM" for name in _CAUSAL.split()]
TESTED = frozenset([*_CAUSAL_CLASSES, *_OTHERS.split()])
"""Classes of models that the project's tests compare with plain forwards and `generate`."""


def check_type(model_type: object, path: Path) -> None:
    """Refuse a type of model that this release of transformers does not have."""
    if isinstance(model_type, str) and model_type not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{path} is a {printable(model_type)} model, which transformers {__version__} does not "
            "have.",
            "Install a release of transformers that has it, if there is one; code that comes with "
            "a checkpoint is not run.",
        )


def check_attention(config: Any, path: Path) -> None:
    """Refuse attention that cannot run over trees, before any weights are read."""
    if reason := _unsupported_attention(config):
        hint = (
            "Use a model whose layers attend to all earlier tokens, or to a window or chunk of "
            "them, such as Llama, Qwen, Mistral, Gemma or gpt-oss."
        )
        raise _no_trees(path, config, f" {reason}", hint)
    if fields := _undeclared_limits(config.get_text_config()):
        name = type(config.get_text_config()).__name__
        raise CheckpointError(
            f"The config.json in {path} limits attention by {fields}, which {name} does not have: "
            "the layers of transformers ignore it, but the cache does not.",
            "If the weights were trained without the limit, delete the field. If not, name the "
            "model_type that has it, such as mistral for a Llama with a sliding_window.",
        )


def _undeclared_limits(text_config: Any) -> str:
    """The fields that would limit attention if the config's class had them, as text, or ""."""
    kinds = attention_kinds(text_config)
    sizes = attention_kinds(text_config, getattr)  # as if the class had all fields
    if all(size in (None, kinds.get(kind)) for kind, size in sizes.items()):
        return ""
    names = {"attention_chunk_size", "layer_types", "sliding_window"}
    fields = undeclared_fields(text_config)
    return ", ".join(f"{name}={fields[name]}" for name in sorted(names.intersection(fields)))


def _no_trees(path: Path, config: Any, reason: str, hint: str) -> CheckpointError:
    """The error for a model that cannot run over trees. `reason` follows its type in the text."""
    message = f"{path} is a {config.model_type} model{reason}, so it cannot run over a tree."
    return CheckpointError(message, hint)


def _unsupported_attention(config: Any) -> str | None:
    """The reason that the config's attention cannot run over trees, or None if it can."""
    text_config = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        return "with encoder-decoder attention"
    if getattr(text_config, "alibi", False):
        return "with alibi, which counts rows instead of positions"
    if "local" in (getattr(text_config, "attention_layers", None) or ()):
        return "with local attention, whose window counts rows instead of positions"
    is_causal = getattr(text_config, "is_causal", True)  # transformers' masks read this field
    if not is_causal or getattr(text_config, "use_bidirectional_attention", None) in (True, "all"):
        return "with bidirectional attention"
    kinds = attention_kinds(text_config, getattr)
    if recurrent := sorted(RECURRENT.intersection(kinds)):
        return f"with {', '.join(recurrent)}, whose state cannot forget rejected tokens"
    if unknown := sorted(kinds.keys() - {FULL, SLIDING, CHUNKED}):
        return f"with layers of type {', '.join(unknown)}, which specbench does not know"
    if sizes := [size for size in kinds.values() if size is not None and size < 1]:
        return f"with a window of {sizes[0]} tokens"
    return None


def check_complete(path: Path, report: dict[str, Any], config: Any) -> None:
    """Refuse weights that do not match the model, since a missing tensor would hold noise.

    The checkpoint may also have layers that predict further tokens, and tensors that its index does
    not list.
    """
    missing = sorted(report["missing_keys"])
    weights = find_weights(path)
    misshapen = sorted(str(key[0]) for key in report["mismatched_keys"])
    errors = [str(error) for error in report.get("error_msgs", ())]
    unexpected = {key for key in report["unexpected_keys"] if not _is_predicting(key, config)}
    if unexpected:
        unexpected -= unlisted_names(weights)
    problems = {
        "lacks": missing,
        "misshapes": misshapen,
        "cannot read": errors,
        "holds weights that the model has no place for:": sorted(unexpected),
    }
    for problem, keys in problems.items():
        if keys:
            holders = holders_text(weights, missing) if keys is missing else ""
            raise CheckpointError(
                f"The checkpoint in {path} {problem} {few(keys)}{holders}.",
                "The weights do not match config.json; copy or download both again.",
            )


def _is_predicting(key: str, config: Any) -> bool:
    """True for a weight of prediction layers after the model's own layers, as in DeepSeek-V3."""
    text_config = config.get_text_config()
    num_predicting = getattr(text_config, "num_nextn_predict_layers", None) or 0
    match = re.match(r"model\.layers\.(\d+)\.", key)
    if match is None:
        return False
    num_after = int(match[1]) - text_config.num_hidden_layers  # 0 follows the model's own layers
    return 0 <= num_after < num_predicting


def check_positions(model: PreTrainedModel, path: Path) -> None:
    """Refuse recurrent models, and models that take no positions.

    Siblings in a tree share a position. Some classes are recurrent only in layers that the config
    names. `check_attention` has already read these names.
    """
    hint = "Use a model with rotary or learned positions, such as Llama, Qwen or GPT-NeoX."
    has_layer_types = bool(declared(model.config.get_text_config(), "layer_types"))
    if getattr(model, "_is_stateful", False) and not has_layer_types:
        reason = "has a recurrent state, which cannot forget rejected tokens"
        raise _no_trees(path, model.config, f", which {reason}", hint)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise _no_trees(path, model.config, ", which takes no position ids", hint)


def check_tree(target: Target, path: Path) -> None:
    """Refuse a model whose logits over a tree are wrong.

    A model of a tested class is probed only if its config has fields that the tests do not cover.
    """
    name = type(target.model).__name__
    fields = undeclared_fields(target.config)
    if name in TESTED and not fields:
        return
    if fault := tree_fault(target):
        with_fields = f" with {few(sorted(fields))} in its config" if fields else ""
        raise CheckpointError(
            f"{path} is a {name}{with_fields}, which cannot run over a tree: {fault}.",
            "Use a model of a tested class, such as Llama, Qwen, Mistral, Gemma or gpt-oss.",
        )
