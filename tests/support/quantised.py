"""Checkpoints in published formats of quantised weights, and the plain weights they stand for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Stored: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""The plain weight [out, in] that a stored one stands for, and the stored tensors by suffix."""

BLOCK = 16
_LARGEST_FP8 = 448.0


def _fp8_blocks(weight: Tensor) -> Stored:
    """FP8 with a scale per block, as in DeepSeek-V3."""
    rows, columns = weight.shape
    blocks = weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scales = blocks.abs().amax((1, 3)) / _LARGEST_FP8
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    stored = (weight / wide).to(torch.float8_e4m3fn)
    return stored.float() * wide, {"weight": stored, "weight_scale_inv": scales}


def fp8_layers(folder: Path) -> dict[str, Tensor]:
    """Rewrite the layers' weights of a checkpoint in FP8; returns all plain weights."""
    plain, stored = {}, {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        plain[key] = stored[key] = tensor.float()
        if ".layers." in key and tensor.ndim == 2:
            del stored[key]
            plain[key], by_suffix = _fp8_blocks(tensor.float())
            for suffix, stored_tensor in by_suffix.items():
                stored[key.replace("weight", suffix)] = stored_tensor
    write(folder, stored, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]})
    return plain


def mxfp4_experts(folder: Path) -> dict[str, Tensor]:
    """Rewrite gpt-oss's experts with random MXFP4 numbers; returns all plain weights."""
    positive = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codebook = torch.cat([positive, -positive])  # the number of each code of 4 bits
    plain, stored = {}, {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        plain[key] = stored[key] = tensor.float()
        if ".experts." in key and not key.endswith("bias"):
            del stored[key]
            experts, inputs, outputs = tensor.shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(118, 122, (experts, outputs, inputs // 32), dtype=torch.uint8)
            stored |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
            # A byte holds two codes, the lower bits first: number * 2 ^ (scale - 127)
            low = codebook[(blocks & 15).int()]
            high = codebook[(blocks >> 4).int()]
            numbers = torch.stack([low, high], -1).flatten(-2)
            rows = numbers * 2.0 ** (scales[..., None].float() - 127)
            plain[key] = rows.reshape(experts, outputs, inputs).transpose(1, 2)
    write(folder, stored, {"quant_method": "mxfp4"})
    return plain


def write(folder: Path, tensors: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> None:
    """Replace the weights of a checkpoint, and say how they are quantised."""
    whole = {key: tensor.contiguous() for key, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quantization)
    (folder / "config.json").write_text(json.dumps(config))
