"""Manage the folder of a training: its lock, its log, and the settings that resuming must repeat.

The official files are at the top of the folder. The checkpoint and the log are in `training/`.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from specbench.errors import UserError, reading
from specbench.log.files import LineFile, folder_errors, write_whole

_WORK_FOLDER = "training"
_SETTINGS = "settings.json"


@contextmanager
def locked_log(work: Path) -> Iterator[LineFile]:
    """Open the log in a work folder, and lock the folder against other processes."""
    with folder_errors(work, "--out"):
        work.mkdir(parents=True, exist_ok=True)
    with closing(LineFile(work / "log.jsonl", "--out")) as log:
        yield log


@contextmanager
def begin_work(
    out: Path, settings: Mapping[str, object], *, is_resumed: bool
) -> Iterator[LineFile]:
    """Lock the work folder below `out` if this training may use it, and return its log.

    A resumed training may have more steps, and the target may write more tokens.

    Raises:
        UserError: another process trains there, or `out` cannot be written or is not empty. Or
            the training is resumed, and `out` has no training or one with other settings.
    """
    _check_folder(out, settings, is_resumed=is_resumed)
    with locked_log(out / _WORK_FOLDER) as log:
        _check_folder(out, settings, is_resumed=is_resumed)  # another process may have begun first
        yield log


def write_settings(log: LineFile, settings: Mapping[str, object]) -> None:
    """Write the settings beside the log. From then on, the training can be resumed."""
    path = log.path.with_name(_SETTINGS)
    with folder_errors(path, "--out"):
        write_whole(path, (json.dumps(settings, indent=2) + "\n").encode())


def _check_folder(out: Path, settings: Mapping[str, object], *, is_resumed: bool) -> None:
    """Refuse a folder that is not empty or, when resumed, has other settings."""
    if is_resumed:
        _check_same(out / _WORK_FOLDER / _SETTINGS, settings)
        return
    if any(path.is_file() and path.stat().st_size for path in out.rglob("*")):
        raise UserError(
            f"--out {out} is not empty.",
            "Continue the run in it with --resume, or give another folder.",
        )


def _check_same(path: Path, settings: Mapping[str, object]) -> None:
    """Refuse settings that differ from those in the file at this path."""
    if not path.exists():
        raise UserError(
            f"There is no training to resume: {path} does not exist.",
            "Leave out --resume to start one in a new folder.",
        )
    hint = "Put the file of this training back, or start again in another folder."
    with reading(path, "The training cannot continue", hint):
        old_settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(old_settings, dict):
            raise ValueError("it is not a JSON object")
    changed = [
        f"{name} was {old_settings.get(name)!r} and is {settings.get(name)!r}"
        for name in sorted({**settings, **old_settings})
        if old_settings.get(name) != settings.get(name)
        and not _may_change(name, old_settings, settings)
    ]
    if changed:
        raise UserError(
            f"The training in {path.parent.parent} has other settings: {'; '.join(changed)}.",
            "Repeat them (--steps and --tokens may grow), or start again in another folder without "
            "--resume.",
        )


def _may_change(name: str, old_settings: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return True for a difference that resuming allows.

    These are more steps, more tokens to write, the same target in another folder, and a template
    that an older training does not name.
    """
    if name == "model":
        return bool(old_settings.get("target_sha256") == settings["target_sha256"])
    if name == "template":
        return name not in old_settings
    if name not in ("num_steps", "num_tokens"):
        return False
    old_number = old_settings.get(name, 0)
    return isinstance(old_number, int) and settings[name] > old_number
