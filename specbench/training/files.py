"""The folder of a head: the official files at the top, checkpoint and log in `training/` below."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from specbench.errors import UserError
from specbench.training.head import Head
from specbench.training.layouts import SAFEAILAB, head_files

_WORK, _SETTINGS = "training", "settings.json"


def write_head(head: Head, folder: Path, layout: str = SAFEAILAB, target: str = "") -> None:
    """Write config.json and the weights in float16, each file replaced in one move.

    `layout` and `target` are those of `head_files`.
    """
    files = head_files(head, layout, target)
    tensors = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in files.tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as partial:
        config = json.dumps(files.config, indent=2) + "\n"
        (Path(partial) / "config.json").write_text(config, encoding="utf-8")
        if files.file_name.endswith(".safetensors"):
            save_file(tensors, Path(partial) / files.file_name)
        else:
            torch.save(tensors, Path(partial) / files.file_name)
        for file in sorted(Path(partial).iterdir()):
            file.chmod(0o644)
            file.replace(folder / file.name)


def check_folder(out: Path, settings: Mapping[str, object], *, is_resumed: bool) -> None:
    """Refuse a folder that cannot take this training, and make it if it is not there.

    Raises:
        UserError: `out` cannot be written, holds something already, or, when resumed, holds no
            run or one with other settings.
    """
    if is_resumed:
        _check_same(out / _WORK / _SETTINGS, settings)
        return
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file.", "Give a folder that is new or empty.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_empty = not any(out.iterdir())
        if is_empty and not os.access(out, os.W_OK | os.X_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        message = f"--out {out} cannot be written: {error.strerror}."
        raise UserError(message, "Give a folder of your own.") from error
    if not is_empty:
        raise UserError(
            f"--out {out} is not empty.",
            "Go on with the run in it by --resume, or give another folder.",
        )


def begin_work(out: Path, settings: Mapping[str, object]) -> Path:
    """Write the settings to the work folder below `out`, and return that folder."""
    work = out / _WORK
    work.mkdir(parents=True, exist_ok=True)
    (work / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return work


def _check_same(path: Path, settings: Mapping[str, object]) -> None:
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"There is no training to resume: {path} cannot be read.",
            "Leave out --resume to start one in a new folder.",
        ) from error
    changed = [
        f"{name} was {before.get(name)!r} and is {settings.get(name)!r}"
        for name in sorted({*before, *settings})
        if before.get(name) != settings.get(name) and not _is_extended(name, before, settings)
    ]
    if changed:
        raise UserError(
            f"The training in {path.parent.parent} has other settings: {'; '.join(changed)}.",
            "Repeat them (--steps may grow), or start anew in another folder without --resume.",
        )


def _is_extended(name: str, before: Any, settings: Mapping[str, Any]) -> bool:
    return name == "num_steps" and settings[name] > before.get(name, 0)
