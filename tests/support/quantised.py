"""Checkpoints in published formats of quantised weights, and the plain weights they stand for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.checkpoint import change_config

Stored: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""The plain weight [out, in] that a stored one stands for, and the stored tensors, by suffix."""

BLOCK = 16
_LARGEST_FP8 = 448.0


def _fp8_blocks(weight: Tensor) -> Stored:
    """Store a weight in FP8 with a scale per block, as DeepSeek-V3 does."""
    num_rows, num_columns = weight.shape
    blocks = weight.view(num_rows // BLOCK, BLOCK, num_columns // BLOCK, BLOCK)
    largest = blocks.abs().amax((1, 3))  # [blocks down, blocks across]
    scales = largest / _LARGEST_FP8
    scale_of_weight = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    stored = (weight / scale_of_weight).to(torch.float8_e4m3fn)
    plain = stored.float() * scale_of_weight
    return plain, {"weight": stored, "weight_scale_inv": scales}


def fp8_layers(folder: Path) -> dict[str, Tensor]:
    """Rewrite the weights of a checkpoint's layers in FP8. Return all plain weights."""
    plain: dict[str, Tensor] = {}
    stored: dict[str, Tensor] = {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        is_layer_weight = ".layers." in key and tensor.ndim == 2
        if not is_layer_weight:
            plain[key] = stored[key] = tensor.float()
            continue
        plain[key], by_suffix = _fp8_blocks(tensor.float())
        for suffix, stored_tensor in by_suffix.items():
            stored[key.replace("weight", suffix)] = stored_tensor
    write(folder, stored, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]})
    return plain


def mxfp4_experts(folder: Path) -> dict[str, Tensor]:
    """Rewrite gpt-oss's experts with random MXFP4 numbers. Return all plain weights."""
    positive = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codebook = torch.cat([positive, -positive])  # the number of each code of 4 bits
    plain: dict[str, Tensor] = {}
    stored: dict[str, Tensor] = {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        is_expert_weight = ".experts." in key and not key.endswith("bias")
        if not is_expert_weight:
            plain[key] = stored[key] = tensor.float()
            continue
        num_experts, num_inputs, num_outputs = tensor.shape
        scales_shape = (num_experts, num_outputs, num_inputs // 32)  # 32 numbers share a scale
        blocks_shape = (*scales_shape, 16)
        blocks = torch.randint(0, 256, blocks_shape, dtype=torch.uint8)
        scales = torch.randint(118, 122, scales_shape, dtype=torch.uint8)
        stored[f"{key}_blocks"] = blocks
        stored[f"{key}_scales"] = scales
        # A byte holds two codes, the lower bits first: number * 2 ^ (scale - 127)
        low = codebook[(blocks & 15).int()]
        high = codebook[(blocks >> 4).int()]
        numbers = torch.stack([low, high], -1).flatten(-2)
        exponents = scales[..., None].float() - 127
        rows = numbers * 2.0**exponents
        plain[key] = rows.reshape(num_experts, num_outputs, num_inputs).transpose(1, 2)
    write(folder, stored, {"quant_method": "mxfp4"})
    return plain


def write(folder: Path, tensors: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> None:
    """Replace the weights of a checkpoint, and write how they are quantised into its config."""
    whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, quantization_config=dict(quantization))
