"""Weights that are quantised while a model is loaded, by torchao.

Linear layers of the decoder are quantised; embeddings and the output head keep the run's dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from specbench.errors import UserError

GROUP_SIZE = 64
"""Weights that share a scale in int4."""


def quantization_config(name: str, device: torch.device) -> Any:
    """The config with which transformers quantises weights to "int8" or "int4" as it loads them.

    int8 has a scale per row, int4 one per `GROUP_SIZE` weights. A CPU computes with int4 weights
    that are stored as bytes; a GPU needs bfloat16 for them.

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
            "Install it: pip install 'specbench[quantize]'.",
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
