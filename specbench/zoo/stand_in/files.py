"""A stand-in on disk: folders of target and head for programs other than this one.

A folder that holds the same stand-in is kept. The noise is drawn on the device, and differs
from one kind of device to another.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specbench.errors import UserError
from specbench.zoo.stand_in.blueprint import Blueprint

_MARK = "stand-in.json"
_COPIED = ("tokenizer.json", "chat_template.jinja", "generation_config.json")


def write_model(
    model: Blueprint, folder: Path, *, dtype: torch.dtype, device: torch.device
) -> None:
    """Write a language model with tiny's tokenizer, unless the folder holds just that.

    Each layer has a file of its own, so that one layer is in memory at once.

    Raises:
        UserError: the folder holds something else.
    """
    if is_written(model, folder, dtype=dtype, device=device):
        return
    _clear(folder)
    weight_map: dict[str, str] = {}
    num_bytes = 0
    tensors = model.tensors(device, dtype)
    for part, group in groupby(tensors, key=lambda named: ".".join(named[0].split(".")[:3])):
        shard = {name: tensor.cpu().contiguous() for name, tensor in group}
        save_file(shard, folder / f"{part}.safetensors", metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, f"{part}.safetensors")
        num_bytes += sum(tensor.nbytes for tensor in shard.values())
    index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
    _write(folder / "model.safetensors.index.json", index)
    for name in _COPIED:
        shutil.copyfile(model.folder / name, folder / name)
    tokenizer = json.loads((model.folder / "tokenizer_config.json").read_text("utf-8"))
    old_names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": tokenizer.pop("extra_special_tokens"),
    }
    _write(folder / "tokenizer_config.json", tokenizer | old_names)
    _finish(model, folder, dtype, device)


def write_head(head: Blueprint, folder: Path, *, dtype: torch.dtype, device: torch.device) -> None:
    """Write EAGLE's or EAGLE-3's head in the official format, unless the folder holds just that.

    Raises:
        UserError: the folder holds something else.
    """
    if is_written(head, folder, dtype=dtype, device=device):
        return
    _clear(folder)
    tensors = {name: tensor.cpu() for name, tensor in head.tensors(device, dtype)}
    torch.save(tensors, folder / "pytorch_model.bin")
    _finish(head, folder, dtype, device)


def is_written(made: Blueprint, folder: Path, *, dtype: torch.dtype, device: torch.device) -> bool:
    """True if the folder holds all of this stand-in, written from this kind of device."""
    try:
        mark = json.loads((folder / _MARK).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return bool(mark == _mark(made, dtype, device))


def _finish(made: Blueprint, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Write the config, and last the mark: without it the folder counts as unfinished."""
    _write(folder / "config.json", _config(made, dtype))
    _write(folder / _MARK, _mark(made, dtype, device))


def _config(made: Blueprint, dtype: torch.dtype) -> dict[str, Any]:
    """A config.json under the names that every release of transformers reads."""
    fields = dict(made.config)
    rope: Mapping[str, Any] = fields.pop("rope_parameters", {})
    if rope:
        fields |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    return {
        "architectures": [f"{fields['model_type'].capitalize()}ForCausalLM"],
        "torch_dtype": str(dtype).removeprefix("torch."),
        **fields,
    }


def _mark(made: Blueprint, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Fields that agree only for the same weights."""
    digest = hashlib.sha256()
    for file in sorted(made.folder.iterdir()):
        digest.update(file.read_bytes())
    return {
        **made.describe(),
        "made_from": digest.hexdigest(),
        "device": device.type,
        "config": _config(made, dtype),
    }


def _clear(folder: Path) -> None:
    """Make the folder, or remove an unfinished or another stand-in's weights from it."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise UserError(
            f"{folder} holds files that are not a stand-in's.",
            "Name a folder that is empty or not there yet.",
        )
    _write(folder / _MARK, {})
    for pattern in ("*.safetensors", "*.bin"):
        for file in folder.glob(pattern):
            file.unlink()


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", "utf-8")
