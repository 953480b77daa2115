"""Draft weights in the form that vLLM reads, written to a folder of their own.

Knows vLLM's names of weights and settings. Must not know flags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG = "config.json"
_EMBEDDING, _FIRST, _BIAS = "embed_tokens.weight", "fc.weight", "fc.bias"
_MOST_ERROR = 1e-3
"""Largest error of a moved bias, relative to the bias."""


def medusa_folder(weights: Path, model: Path, made: Path) -> Path:
    """Medusa heads with the settings that vLLM asks for: `weights` itself if it is in its layout.

    The weights are linked.
    """
    config, target = _read(weights / _CONFIG), _read(model / _CONFIG)
    if "medusa_num_heads" not in config:
        return weights
    config |= {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": target["hidden_size"],
        "vocab_size": target["vocab_size"],
        "medusa_fc_bias": True,
        "num_heads": config["medusa_num_heads"],
        "num_hidden_layers": config["medusa_num_layers"],
    }
    _write(made, config)
    for file in weights.iterdir():
        link = made / file.name
        if file.name != _CONFIG and not link.exists():
            link.symlink_to(file.resolve())
    return made


def eagle_folder(weights: Path, made: Path) -> Path:
    """An EAGLE head whose first layer has no bias: `weights` itself if it has none.

    vLLM 0.32 leaves `fc.bias` out without saying so, and then accepts no draft token. The bias b is
    moved into the embedding: fc [e; h] + b = fc [e + x; h] with E x = b, where E are the columns of
    fc that the embedding e meets.

    Raises:
        CheckpointError: there is no such x, or the head has no embedding of its own.
    """
    from safetensors.torch import save_file

    from specbench.methods._checkpoint import read_tensors
    from specbench.methods._eagle import FILES

    tensors = read_tensors("eagle", weights, FILES)
    if _BIAS not in tensors:
        return weights
    moved = _without_bias(tensors, weights)
    _write(made, _read(weights / _CONFIG) | {"bias": False})
    save_file({name: one.contiguous() for name, one in moved.items()}, made / FILES[0])
    return made


def _without_bias(tensors: Mapping[str, Tensor], weights: Path) -> dict[str, Tensor]:
    """The tensors of a head with the bias of its first layer in its embedding [vocab, hidden]."""
    import torch

    if missing := [name for name in (_EMBEDDING, _FIRST) if name not in tensors]:
        raise _refusal(weights, f"has no {missing[0]} that could take it")
    kept = {name: tensor for name, tensor in tensors.items() if name != _BIAS}
    embedding, bias = kept[_EMBEDDING], tensors[_BIAS].double()
    columns = kept[_FIRST][:, : embedding.shape[1]].double()
    shift = torch.linalg.lstsq(columns, bias[:, None]).solution[:, 0]
    error = (columns @ shift - bias).norm() / bias.norm().clamp_min(torch.finfo(bias.dtype).tiny)
    if not error <= _MOST_ERROR:
        raise _refusal(weights, f"cannot take it (relative error {error:.2g})")
    return {**kept, _EMBEDDING: (embedding.double() + shift).to(torch.float32)}


def _refusal(weights: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"vLLM cannot run the EAGLE head in {weights}: it ignores {_BIAS}, and the head {why}.",
        "Use a head without this bias, or leave eagle out.",
    )


def _read(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values


def _write(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps(config), encoding="utf-8")
