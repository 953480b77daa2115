"""Load a target from a local Hugging Face folder, or make it from weights in memory.

Models that the engine cannot run are refused.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    __version__,
)  # fmt: skip

from specbench.engine.execution import Execution
from specbench.engine.layers.torch_attention import (
    CHUNKED,
    FULL,
    RECURRENT,
    SLIDING,
    attention_kinds,
)
from specbench.engine.probe import replay_fault, tree_fault
from specbench.engine.spread import Spread, device_of, send_inputs
from specbench.engine.target import Target
from specbench.errors import CheckpointError, UserError, few, printable, reason_of

_CAUSAL = """
    Apertus Arcee BioGpt CodeGen Cohere2 Cohere Cwm DeepseekV2 DeepseekV3 Ernie4_5 Ernie4_5_Moe
    Exaone4 Falcon GPTBigCode GPTJ GPTNeoX Gemma2 Gemma3 Gemma4 Gemma Glm4 Glm4Moe Glm4MoeLite
    Glm GptOss Granite GraniteMoe GraniteSWA Helium HunYuanDenseV1 HunYuanMoEV1 Llama4 Llama
    MiMoV2Flash MiniMaxM2 Ministral3 Ministral Mistral Mixtral Nemotron OPT Olmo2 Olmo3 Olmo
    Persimmon Phi3 Phi Phimoe Qwen2 Qwen2Moe Qwen3 Qwen3Moe SeedOss SmolLM3 StableLm Starcoder2"""
_OTHERS = "GPT2LMHeadModel Gemma3ForConditionalGeneration Gemma4ForConditionalGeneration"
_NAMES = [f"{name}ForCausalLM" for name in _CAUSAL.split()]
TESTED = frozenset([*_NAMES, *_OTHERS.split()])
"""Classes of models that the project's tests compare with plain forwards and `generate`."""
_SAME = ("auto-round", "bitsandbytes", "compressed-tensors", "hqq", "torchao")
_PACKAGES = {
    **{name: name for name in _SAME},
    "awq": "gptqmodel",
    "gptq": "gptqmodel optimum",
    "quanto": "optimum-quanto",
}
"""The packages with which transformers reads a format."""
_MODULES = {"optimum-quanto": "optimum.quanto"}
_LEAST_CAPABILITY = {"fp8": (8, 9), "mxfp4": (7, 5)}
"""Formats that transformers turns into plain weights on other devices than these GPUs."""
_ALWAYS_PLAIN = "compressed-tensors"
"""The format whose weights become plain on every device, at the latest in the first forward."""


class WeightSource(Protocol):
    """Replacement for a checkpoint folder: the config of config.json, and every tensor by name.

    `name` identifies it in errors. `tensors` makes the tensors one by one, anew in each call.
    """

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]: ...


def _model_of(
    source: WeightSource, dtype: torch.dtype, device: torch.device, spread: Spread | None
) -> PreTrainedModel:
    """Build the causal language model of a source's config from its tensors.

    The tensors become the parameters without a copy, except those that `spread` moves from
    `device` to another GPU.

    Raises:
        CheckpointError: the tensors do not cover the model, or have other shapes.
    """
    config = AutoConfig.for_model(**source.config)
    model = without_weights(config, dtype)
    placed = spread.place(model) if spread else {"": device}
    missing = dict(model.named_parameters())
    for name, tensor in source.tensors(device, dtype):
        parameter = missing.pop(name, None)
        if parameter is None or parameter.shape != tensor.shape:
            raise _mismatch(source, f"makes {name} {list(tensor.shape)}, which the model lacks")
        tensor = tensor.to(device_of(name, placed))
        _replace(model, name, nn.Parameter(tensor, requires_grad=False))
    if missing:
        raise _mismatch(source, f"lacks {', '.join(sorted(missing)[:3])}")
    for name, buffer in [*model.named_buffers()]:
        _replace(model, name, buffer.to(device_of(name, placed)))
    if spread:
        send_inputs(model, placed)
    return model


def without_weights(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The causal language model of a config, whose parameters have shapes alone."""
    with init_empty_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model


def _replace(model: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, tensor)


def _mismatch(source: WeightSource, what: str) -> CheckpointError:
    hint = "Its config and its tensors must describe the same model."
    return CheckpointError(f"{source.name} {what}.", hint)


def load_target(
    path: Path | WeightSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    execution: Execution | None = None,
    spread: Spread | None = None,
) -> Target:
    """Load the causal language model in `path`, or of a source, as a target.

    With `spread` its layers are spread over several GPUs; `device` is the first.

    Raises:
        CheckpointError: the folder is not a causal language model, has missing or misshapen
            weights, or has attention that trees cannot use yet.
    """
    if not isinstance(path, Path):
        return with_graphs_proven(Target(_model_of(path, dtype, device, spread), execution))
    try:
        check_type(PreTrainedConfig.get_config_dict(path)[0].get("model_type"), path)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        check_attention(config, path)
        prepare_stored(config, path, device)
        placed = spread.place(without_weights(config, dtype)) if spread else {"": device}
        model, report = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, device_map=None if device.type == "cpu" else placed,
            output_loading_info=True, ignore_mismatched_sizes=True,  # check_complete refuses them
            trust_remote_code=False,
        )  # fmt: skip
        check_complete(path, report, config)
        check_positions(model, path)
        if spread:
            send_inputs(model, placed)
        target = Target(model, execution)
        check_tree(target, path)
        return with_graphs_proven(target)
    except UserError:
        raise
    except Exception as error:  # a damaged or hostile folder may fail in any way
        raise broken(path, error) from error


def broken(path: Path, error: Exception) -> CheckpointError:
    """The error for a folder that transformers cannot load, with the first line of its reason."""
    return CheckpointError(
        f"{path} does not load as a causal language model: {reason_of(error)}",
        "Check that config.json and the weights are complete; copy or download them again.",
    )


def check_type(model_type: object, path: Path) -> None:
    """Refuse a type of models that this release of transformers does not have."""
    if isinstance(model_type, str) and model_type not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{path} is a {printable(model_type)} model, which transformers {__version__} does not "
            "have.",
            "Install a release of transformers that has it, if there is one; code that comes with "
            "a checkpoint is not run.",
        )


def check_attention(config: Any, path: Path) -> None:
    """Refuse attention that cannot run over trees, with the reason, before weights are read."""
    if reason := _unsupported_attention(config):
        hint = "Use a model whose layers attend to all earlier tokens, or to a window or chunk of "
        hint += "them, such as Llama, Qwen, Mistral, Gemma or gpt-oss."
        raise _no_trees(path, config, f" {reason}", hint)


def _no_trees(path: Path, config: Any, reason: str, hint: str) -> CheckpointError:
    text = f"{path} is a {config.model_type} model{reason}, so it cannot run over a tree."
    return CheckpointError(text, hint)


def _unsupported_attention(config: Any) -> str | None:
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        return "with encoder-decoder attention"
    if getattr(text, "alibi", False):
        return "with alibi, which counts rows instead of positions"
    if "local" in (getattr(text, "attention_layers", None) or ()):
        return "with local attention, whose window counts rows instead of positions"
    if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        return "with bidirectional attention"
    kinds = attention_kinds(text)
    if recurrent := sorted(RECURRENT.intersection(kinds)):
        return f"with {', '.join(recurrent)}, whose state cannot forget rejected tokens"
    if unknown := sorted(kinds.keys() - {FULL, SLIDING, CHUNKED}):
        return f"with {', '.join(unknown)}"
    if sizes := [size for size in kinds.values() if size is not None and size < 1]:
        return f"with a window of {sizes[0]} tokens"
    return None


def check_format(method: str, path: Path) -> None:
    """Refuse a checkpoint in a format that cannot be read here.

    Raises:
        CheckpointError: transformers does not know the format, or needs packages for it.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    known = {name.split("_4bit")[0].split("_8bit")[0] for name in AUTO_QUANTIZATION_CONFIG_MAPPING}
    if method not in known:  # transformers would ignore it
        raise CheckpointError(
            f"The weights in {path} are quantised in the format {method}, which transformers does "
            "not know.",
            "Use plain weights, or another checkpoint of the model.",
        )
    missing = [name for name in _PACKAGES.get(method, "").split() if not _is_installed(name)]
    if missing:
        names = " ".join(missing)
        raise CheckpointError(
            f"The weights in {path} are quantised in the format {method}, and transformers needs "
            f"{names} to read it.",
            f"Install it: pip install {names}",
        )


def is_dequantized(method: str, device: torch.device) -> bool:
    """True if weights in this format become plain ones while they are loaded onto the device.

    The conditions are as in transformers 5.23.
    """
    least = _LEAST_CAPABILITY.get(method)
    if least is None:
        return method == _ALWAYS_PLAIN
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < least:
        return True
    return method == "mxfp4" and not _is_installed("kernels")


def prepare_stored(config: Any, path: Path, device: torch.device) -> None:
    """Check a checkpoint's quantised weights; ask for plain ones if the device needs them.

    transformers asks for any GPU of the machine, not for the device of the model.

    Raises:
        CheckpointError: the format cannot be read.
    """
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return
    method = str(stored.get("quant_method", "unknown"))
    check_format(method, path)
    if is_dequantized(method, device):
        config.quantization_config = {**stored, "dequantize": True}


def _is_installed(package: str) -> bool:
    name = _MODULES.get(package, package.replace("-", "_"))
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that a module is in
        return False


def check_complete(path: Path, report: dict[str, Any], config: Any) -> None:
    """Refuse weights that do not match the model: a missing tensor would hold noise.

    Layers that predict further tokens may lie beside the model's own.
    """
    missing = sorted(report["missing_keys"])
    misshapen = sorted(str(key[0]) for key in report["mismatched_keys"])
    errors = [str(error) for error in report.get("error_msgs", ())]
    unexpected = sorted(key for key in report["unexpected_keys"] if not _predicts(key, config))
    for what, keys in (
        ("lacks", missing), ("misshapes", misshapen), ("cannot read", errors),
        ("holds weights that the model has no place for:", unexpected),
    ):  # fmt: skip
        if keys:
            raise CheckpointError(
                f"The checkpoint in {path} {what} {few(keys)}.",
                "The weights do not match config.json; copy or download both again.",
            )


def _predicts(key: str, config: Any) -> bool:
    """True for a weight of the prediction layers that follow the model's own, as in DeepSeek-V3."""
    text = config.get_text_config()
    count = getattr(text, "num_nextn_predict_layers", None) or 0
    layer = re.match(r"model\.layers\.(\d+)\.", key)
    return layer is not None and 0 <= int(layer[1]) - text.num_hidden_layers < count


def check_positions(model: PreTrainedModel, path: Path) -> None:
    """Refuse recurrent models, and ones without positions: siblings in a tree share a position."""
    hint = "Use a model with rotary or learned positions, such as Llama, Qwen or GPT-NeoX."
    if getattr(model, "_is_stateful", False):
        reason = "has a recurrent state, which cannot forget rejected tokens"
        raise _no_trees(path, model.config, f", which {reason}", hint)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise _no_trees(path, model.config, ", which takes no position ids", hint)


def check_tree(target: Target, path: Path) -> None:
    """Refuse a model of an untested class whose logits over a tree are wrong."""
    name = type(target.model).__name__
    if name in TESTED:
        return
    if fault := tree_fault(target):
        raise CheckpointError(
            f"{path} is a {name}, which cannot run over a tree: {fault}.",
            "Use a model of a tested class, such as Llama, Qwen, Mistral, Gemma or gpt-oss.",
        )


def with_graphs_proven(target: Target) -> Target:
    """The target. Its own forward is set to run eagerly if its steps cannot be replayed."""
    if target.unfused_reason and target.execution.is_static and not target.eager_reason:
        target.eager_reason = replay_fault(target)
    return target
