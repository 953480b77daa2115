"""Checkpoints in published formats of quantised weights, and the plain weights they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Stored: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""The plain weight [out, in] that a stored one stands for, and the stored tensors by suffix."""

BLOCK, GROUP, WIDE_GROUP = 16, 16, 32
_LARGEST_FP8 = 448.0


def fp8_blocks(weight: Tensor) -> Stored:
    """FP8 with a scale per block, as in DeepSeek-V3."""
    rows, columns = weight.shape
    blocks = weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    scales = blocks.abs().amax((1, 3)) / _LARGEST_FP8
    wide = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    stored = (weight / wide).to(torch.float8_e4m3fn)
    return stored.float() * wide, {"weight": stored, "weight_scale_inv": scales}


def fp8_rows(weight: Tensor) -> Stored:
    """FP8 with a scale per row, by compressed-tensors."""
    scales = weight.abs().amax(1, keepdim=True) / _LARGEST_FP8
    stored = (weight / scales).to(torch.float8_e4m3fn)
    return stored.float() * scales, {"weight": stored, "weight_scale": scales}


def int8_rows(weight: Tensor) -> Stored:
    """int8 with a scale per row, by compressed-tensors."""
    scales = weight.abs().amax(1, keepdim=True) / 127
    stored = (weight / scales).round().to(torch.int8)
    return stored.float() * scales, {"weight": stored, "weight_scale": scales}


def int4_groups(weight: Tensor) -> Stored:
    """int4 with a scale per group of a row, eight to a word, by compressed-tensors."""
    groups = weight.view(len(weight), -1, GROUP)
    scales = groups.abs().amax(-1) / 7
    stored = (groups / scales[..., None]).round()
    words = (stored.view(len(weight), -1, 8) + 8).to(torch.int32) << (4 * torch.arange(8))
    return (stored * scales[..., None]).view_as(weight), {
        "weight_packed": words.sum(-1).to(torch.int32),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }


def gptq_groups(weight: Tensor) -> Stored:
    """int4 with a scale per group of a row, eight inputs to a word, by GPTQ."""
    stored, scales, plain = _int4_columns(weight)
    inputs = len(stored)
    words = (stored.view(inputs // 8, 8, -1) << (4 * torch.arange(8))[:, None]).sum(1)
    zeros = torch.full((len(scales), weight.shape[0] // 8), 0x77777777, dtype=torch.int32)
    groups = torch.arange(inputs, dtype=torch.int32) // WIDE_GROUP
    return plain, {
        "qweight": words.to(torch.int32), "qzeros": zeros, "scales": scales, "g_idx": groups,
    }  # fmt: skip


def awq_groups(weight: Tensor) -> Stored:
    """int4 with a scale per group of a row, eight outputs to a word, by AWQ."""
    stored, scales, plain = _int4_columns(weight)
    shifts = 4 * torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    words = (stored.view(len(stored), -1, 8) << shifts).sum(-1)
    zeros = torch.full((len(scales), weight.shape[0] // 8), -0x77777778, dtype=torch.int32)
    return plain, {"qweight": words.to(torch.int32), "qzeros": zeros, "scales": scales}


def _int4_columns(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers [in, out] from 0 to 15 and scales [groups, out], with the weight they stand for."""
    groups = weight.view(len(weight), -1, WIDE_GROUP)
    scales = (groups.abs().amax(-1) / 7).half()
    stored = (groups / scales[..., None].float()).round().clamp(-8, 7)
    plain = (stored * scales[..., None].float()).view_as(weight)
    return (stored.view_as(weight).T + 8).to(torch.int64), scales.T.contiguous(), plain


def _compressed(kind: str, weights: Mapping[str, Any], *, has_inputs: bool) -> dict[str, Any]:
    number = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", **weights}
    inputs = {**number, "strategy": "token", "dynamic": True} if has_inputs else None
    group = {"targets": ["Linear"], "weights": number, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": group},
    }  # fmt: skip


FORMATS: dict[str, tuple[Callable[[Tensor], Stored], dict[str, Any]]] = {
    "fp8": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}),
    "compressed-fp8": (
        fp8_rows, _compressed("float-quantized", {"type": "float"}, has_inputs=False)
    ),
    "compressed-int8": (int8_rows, _compressed("int-quantized", {}, has_inputs=False)),
    "compressed-w8a8": (int8_rows, _compressed("int-quantized", {}, has_inputs=True)),
    "compressed-int4": (
        int4_groups,
        _compressed(
            "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": GROUP},
            has_inputs=False,
        ),
    ),
}  # fmt: skip
"""Names of formats -> how a weight is stored, and the `quantization_config`."""
_INT4 = {"bits": 4, "group_size": WIDE_GROUP}
KEPT: dict[str, tuple[Callable[[Tensor], Stored], dict[str, Any]]] = {
    "gptq": (gptq_groups, {**_INT4, "quant_method": "gptq", "desc_act": False, "sym": True}),
    "awq": (awq_groups, {**_INT4, "quant_method": "awq", "zero_point": True, "version": "gemm"}),
}
"""Formats that layers of gptqmodel compute with."""


def quantise(folder: Path, name: str) -> dict[str, Tensor]:
    """Rewrite the layers' weights of a checkpoint in a format; returns all plain weights."""
    store, config = {**FORMATS, **KEPT}[name]
    plain, stored = {}, {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        plain[key] = stored[key] = tensor.float()
        if ".layers." in key and tensor.ndim == 2:
            del stored[key]
            plain[key], parts = store(tensor.float())
            stored |= {key.replace("weight", suffix): part for suffix, part in parts.items()}
    write(folder, stored, config)
    return plain


def mxfp4_experts(folder: Path) -> dict[str, Tensor]:
    """Rewrite gpt-oss's experts with random MXFP4 numbers; returns all plain weights."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    plain, stored = {}, {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        plain[key] = stored[key] = tensor.float()
        if ".experts." in key and not key.endswith("bias"):
            del stored[key]
            experts, inputs, outputs = tensor.shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(118, 122, (experts, outputs, inputs // 32), dtype=torch.uint8)
            stored |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
            halves = torch.stack([values[(blocks & 15).int()], values[(blocks >> 4).int()]], -1)
            rows = halves.flatten(-2) * 2.0 ** (scales[..., None].float() - 127)
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
