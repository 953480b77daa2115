"""Quantised weights: a checkpoint's own, and those that torchao quantises while it is loaded.

With torchao, linear layers of the decoder are quantised; embeddings and the output head keep
the run's dtype.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from specbench.errors import CheckpointError, UserError

GROUP_SIZE = 64
"""Weights that share a scale in int4."""


_PACKAGES = {
    "auto-round": ("auto-round",),
    "awq": ("gptqmodel",),
    "bitsandbytes": ("bitsandbytes",),
    "compressed-tensors": ("compressed-tensors",),
    "gptq": ("gptqmodel", "optimum"),
    "hqq": ("hqq",),
    "quanto": ("optimum-quanto",),
    "torchao": ("torchao",),
}
"""The packages with which transformers reads a format."""
_MODULES = {"optimum-quanto": "optimum.quanto"}
_LEAST_CAPABILITY = {"fp8": (8, 9), "mxfp4": (7, 5)}
"""Formats that transformers turns into plain weights on other devices than these GPUs."""
_ALWAYS_PLAIN = "compressed-tensors"
"""The format whose weights become plain on every device, at the latest in the first forward."""


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
            "Use plain weights, with --quantize int8 or int4 if they have to be small.",
        )
    missing = [name for name in _PACKAGES.get(method, ()) if not _is_installed(name)]
    if missing:
        names = " ".join(missing)
        raise CheckpointError(
            f"The weights in {path} are quantised in the format {method}, and transformers needs "
            f"{names} to read it.",
            f"Install it: pip install {names}",
        )


def is_dequantized(method: str, device: torch.device) -> bool:
    """True if weights in this format become plain ones while they are loaded onto the device.

    The conditions are those of transformers 5.23.
    """
    least = _LEAST_CAPABILITY.get(method)
    if least is None:
        return method == _ALWAYS_PLAIN
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < least:
        return True
    return method == "mxfp4" and not _is_installed("kernels")


def prepare_stored(config: Any, path: Path, device: torch.device) -> None:
    """Check a checkpoint's quantised weights; plain ones where the device cannot compute with them.

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


def quantization_config(name: str, device: torch.device) -> Any:
    """The config with which transformers quantises weights to "int8" or "int4" as it loads them.

    int8 has a scale per row, int4 one per `GROUP_SIZE` weights. A CPU computes with int4
    weights that are stored as bytes; a GPU needs bfloat16 for them.

    Raises:
        UserError: torchao is not installed.
    """
    try:
        from torchao.quantization import (
            Int4WeightOnlyConfig,
            Int8WeightOnlyConfig,
            IntxWeightOnlyConfig,
        )
        from torchao.quantization.granularity import PerGroup
    except ImportError as error:
        raise UserError(
            f"--quantize {name} needs torchao, which cannot be imported ({error}).",
            "Install it: pip install 'torchao>=0.15'.",
        ) from error
    from transformers import TorchAoConfig

    if name == "int8":
        return TorchAoConfig(Int8WeightOnlyConfig())
    if device.type == "cpu":
        group = PerGroup(GROUP_SIZE)
        return TorchAoConfig(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group))  # type: ignore[attr-defined]
    return TorchAoConfig(
        Int4WeightOnlyConfig(group_size=GROUP_SIZE, int4_packing_format="tile_packed_to_4d")
    )
