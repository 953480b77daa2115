"""Loading a target from a local Hugging Face folder, and refusing what the engine cannot drive."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specbench.engine.execution import Execution
from specbench.engine.source import WeightSource, make_target
from specbench.engine.target import Target
from specbench.errors import CheckpointError, reason_of

LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError)
"""What transformers and safetensors raise on a broken or foreign folder."""


def load_target(
    path: Path | WeightSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    execution: Execution | None = None,
) -> Target:
    """The causal language model in `path`, or made by a source, as a target.

    A model larger than its CUDA device is spread over all of them (`device_map="auto"`).

    Raises:
        CheckpointError: the folder is no causal language model, lacks or misshapes weights, or has
            an attention that trees cannot use yet.
    """
    if not isinstance(path, Path):
        return make_target(path, dtype=dtype, device=device, execution=execution)
    try:
        config = AutoConfig.from_pretrained(path)
    except LOAD_ERRORS as error:
        raise broken(path, error) from error
    check_attention(config, path)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, device_map=_device_map(path, device),
            output_loading_info=True, ignore_mismatched_sizes=True,  # check_complete refuses them
        )  # fmt: skip
    except torch.OutOfMemoryError:
        raise
    except LOAD_ERRORS as error:
        raise broken(path, error) from error
    check_complete(path, report)
    check_positions(model, path)
    return Target(model, execution)


def broken(path: Path, error: Exception) -> CheckpointError:
    """The error for a folder that transformers cannot load, with its first line of reason."""
    return CheckpointError(
        f"{path} does not load as a causal language model: {reason_of(error)}",
        "Check that config.json and the weights are complete; copy or download them again.",
    )


def check_attention(config: Any, path: Path) -> None:
    """Refuse attention that does not see every committed token."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        kinds.add("sliding_attention")
    if getattr(config, "is_encoder_decoder", False):
        kinds.add("encoder-decoder attention")
    if kinds:
        raise CheckpointError(
            f"{path} is a {config.model_type} model with {', '.join(sorted(kinds))}: "
            "only full attention is supported.",
            "Use a model whose layers all have full attention, such as Llama, Qwen or Mixtral.",
        )


def check_complete(path: Path, report: dict[str, Any]) -> None:
    """Refuse weights that do not cover the model: a missing tensor would be noise."""
    missing = sorted(report["missing_keys"])
    misshapen = sorted(str(key[0]) for key in report["mismatched_keys"])
    errors = [str(error) for error in report.get("error_msgs", ())]
    for what, keys in (("lacks", missing), ("misshapes", misshapen), ("cannot read", errors)):
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            raise CheckpointError(
                f"The checkpoint in {path} {what} {', '.join(keys[:3])}{more}.",
                "The weights do not match config.json; copy or download both again.",
            )


def check_positions(model: PreTrainedModel, path: Path) -> None:
    """Refuse models that do not take positions: a tree's siblings share one."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise CheckpointError(
            f"{path} is a {model.config.model_type} model, which takes no position ids, so that "
            "it cannot run over a tree.",
            "Use a model with rotary or learned positions, such as Llama, Qwen or GPT-NeoX.",
        )


def _device_map(path: Path, device: torch.device) -> str | dict[str, torch.device] | None:
    if device.type != "cuda":
        return None
    weights = sum(f.stat().st_size for f in path.glob("*.safetensors"))
    free, _ = torch.cuda.mem_get_info(device)
    if weights > free and torch.cuda.device_count() > 1:
        return "auto"
    return {"": device}
