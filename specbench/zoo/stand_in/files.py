"""A stand-in on disk: the folders of target and head that programs other than this one read.

Knows tensors, files and what the fields of a config.json are called. Whole folders are kept.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.errors import UserError
from specbench.zoo.stand_in.blueprint import Blueprint

SHARD_BYTES = 4 * 2**30
"""What a file of weights holds at most, a larger tensor apart: it is all in memory once."""

_MARK = "stand-in.json"
_BESIDE = ("tokenizer.json", "chat_template.jinja", "generation_config.json")


def write_model(
    model: Blueprint, folder: Path, *, dtype: torch.dtype, device: torch.device,
    shard_bytes: int = SHARD_BYTES,
) -> None:  # fmt: skip
    """Write a language model with tiny's tokenizer, unless the folder holds just that.

    The noise is drawn on `device`, and differs from one kind of device to another.

    Raises:
        UserError: the folder holds something else.
    """
    if is_written(model, folder, dtype=dtype, device=device):
        return
    _clear(folder)
    weight_map: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    num_bytes = num_shards = 0

    def flush() -> None:
        nonlocal num_shards
        num_shards += 1
        name = f"model-{num_shards:05}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, tensor in model.tensors(device, dtype):
        if shard and sum(t.nbytes for t in shard.values()) + tensor.nbytes > shard_bytes:
            flush()
        shard[name] = tensor.cpu().contiguous()
        num_bytes += tensor.nbytes
    flush()
    index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
    _write(folder / "model.safetensors.index.json", index)
    for name in _BESIDE:
        shutil.copyfile(model.folder / name, folder / name)
    tokenizer = json.loads((model.folder / "tokenizer_config.json").read_text("utf-8"))
    old_names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": tokenizer.pop("extra_special_tokens"),
    }
    _write(folder / "tokenizer_config.json", tokenizer | old_names)
    _write(folder / "config.json", _config(model, dtype))
    _write(folder / _MARK, _mark(model, dtype, device))


def write_head(head: Blueprint, folder: Path, *, dtype: torch.dtype, device: torch.device) -> None:
    """Write a head as its method's official code has it, unless the folder holds just that.

    Raises:
        UserError: the folder holds something else.
    """
    if is_written(head, folder, dtype=dtype, device=device):
        return
    _clear(folder)
    tensors = {name: tensor.cpu() for name, tensor in head.tensors(device, dtype)}
    torch.save(tensors, folder / "pytorch_model.bin")
    _write(folder / "config.json", _config(head, dtype))
    _write(folder / _MARK, _mark(head, dtype, device))


def is_written(made: Blueprint, folder: Path, *, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the folder holds all of this stand-in, written from this device."""
    try:
        mark = json.loads((folder / _MARK).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return bool(mark == _mark(made, dtype, device))


def _config(made: Blueprint, dtype: torch.dtype) -> dict[str, Any]:
    """A config.json under the names that every release of transformers reads."""
    fields = dict(made.config)
    rope: Mapping[str, Any] = fields.pop("rope_parameters", {})
    if rope:
        fields |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    architecture = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[fields["model_type"]]
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "torch_dtype": str(dtype).removeprefix("torch."),
        **fields,
    }


def _mark(made: Blueprint, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What has to agree for a folder to hold the same weights. It is written last."""
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
    """Make room in a folder of ours: an unfinished or another stand-in's weights go."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise UserError(
            f"{folder} holds files, and they are no stand-in's.",
            "Name a folder that is empty or not there yet.",
        )
    _write(folder / _MARK, {})
    for pattern in ("*.safetensors", "*.bin"):
        for file in folder.glob(pattern):
            file.unlink()


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", "utf-8")
