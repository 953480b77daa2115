"""Weights that both sides load: a stand-in, written once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import UserError
from specbench.models.cards import Dtype


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of the weights."""

    root: Path

    @property
    def target(self) -> Path:
        return self.root / "target"

    @property
    def head(self) -> Path:
        return self.root / "eagle"


def write_weights(model: str, folders: Folders, device: str, dtype: Dtype) -> None:
    """Write a stand-in's target and EAGLE head, unless they exist.

    Raises:
        UserError: the model has no stand-in, or the disk has no room for it.
    """
    import torch

    from specbench.measure.stand_ins import stand_in_of
    from specbench.models.cards import find_model
    from specbench.zoo.stand_in.files import is_written, write_head, write_model

    stand_in = stand_in_of(find_model(model))
    kind, where = getattr(torch, dtype), torch.device(device)
    made = {folders.target: stand_in.target, folders.head: stand_in.drafters["eagle"]}
    missing = sum(
        one.num_numbers * kind.itemsize
        for folder, one in made.items()
        if not is_written(one, folder, dtype=kind, device=where)
    )
    folders.root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folders.root).free
    if missing > free:
        raise UserError(
            f"--work {folders.root} has {free / 1e9:.1f} GB free, but the weights need "
            f"{missing / 1e9:.1f} GB.",
            "Give a --work folder on a larger disk, or a smaller --model.",
        )
    write_model(made[folders.target], folders.target, dtype=kind, device=where)
    write_head(made[folders.head], folders.head, dtype=kind, device=where)
    if where.type == "cuda":
        torch.cuda.empty_cache()  # the official side needs the room
