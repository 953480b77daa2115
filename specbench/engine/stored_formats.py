"""Decide which quantised formats can be read, and which of them become plain weights."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from specbench.errors import CheckpointError

_NAMED_AS_PACKAGE = ("auto-round", "bitsandbytes", "compressed-tensors", "hqq", "torchao")
"""Formats that are read by the package of the same name."""
_PACKAGES = {
    **{name: name for name in _NAMED_AS_PACKAGE},
    "awq": "gptqmodel",
    "gptq": "gptqmodel optimum",
    "quanto": "optimum-quanto",
}
"""Format -> the packages that transformers needs to read it, separated by spaces."""
_MODULES = {"optimum-quanto": "optimum.quanto"}
"""Package -> its module, if the module has another name than the package."""
_LEAST_CAPABILITY = {"fp8": (8, 9), "mxfp4": (7, 5)}
"""Format -> lowest compute capability that runs it. On lower ones, weights become plain."""
_ALWAYS_PLAIN = "compressed-tensors"
"""The format whose weights become plain on every device, in the first forward if not earlier."""


def check_format(method: str, path: Path) -> None:
    """Refuse a checkpoint in a format that cannot be read here.

    Raises:
        CheckpointError: transformers does not know the format, or needs packages for it.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    readable = {
        name.removesuffix("_4bit").removesuffix("_8bit")
        for name in AUTO_QUANTIZATION_CONFIG_MAPPING
    }
    if method not in readable:  # transformers would ignore it
        raise CheckpointError(
            f"The weights in {path} are quantised in the format {method}, which transformers does "
            "not know.",
            "Use plain weights, or another checkpoint of the model.",
        )
    packages = _PACKAGES.get(method, "").split()
    missing = [package for package in packages if not _is_installed(package)]
    if missing:
        names = " ".join(missing)
        raise CheckpointError(
            f"The weights in {path} are quantised in the format {method}, and transformers needs "
            f"{names} to read it.",
            f"Install it: pip install {names}",
        )


def is_dequantized(method: str, device: torch.device) -> bool:
    """True if weights in this format become plain weights while they are loaded onto the device.

    The conditions are as in transformers 5.23.
    """
    least_capability = _LEAST_CAPABILITY.get(method)
    if least_capability is None:
        return method == _ALWAYS_PLAIN
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < least_capability:
        return True
    return method == "mxfp4" and not _is_installed("kernels")


def prepare_stored(config: Any, path: Path, device: torch.device) -> None:
    """Check a checkpoint's quantised weights. Ask for plain weights if the device needs them.

    transformers itself only checks whether the machine has a GPU, not where the model runs.

    Raises:
        CheckpointError: the format cannot be read.
    """
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return
    method = str(quantization.get("quant_method", "unknown"))
    check_format(method, path)
    if is_dequantized(method, device):
        config.quantization_config = {**quantization, "dequantize": True}


def _is_installed(package: str) -> bool:
    module = _MODULES.get(package, package.replace("-", "_"))
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the module's parent package is missing
        return False
