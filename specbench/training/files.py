"""The folder of a head: the official files at the top, checkpoint and log in `training/` below."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from specbench.errors import NonFiniteError, UserError, reading
from specbench.log.files import LineFile, folder_errors, write_whole
from specbench.training.head import Head

_WORK, _SETTINGS = "training", "settings.json"
NO_NUMBERS = "Check the weights and the config.json of the model, and the text it is trained on."
"""The hint for NaN and infinity."""


def write_head(head: Head, folder: Path) -> None:
    """Write the files of the method's official code: config.json and the weights in float16.

    Each file is replaced in one move.

    Raises:
        NonFiniteError: a weight does not fit into float16. The files are as before.
        RunFolderError: a file cannot be written. It is as before.
    """
    fields = head.config()
    vocab = fields.get("vocab_size")
    is_whole = fields.get("draft_vocab_size", vocab) == vocab  # vLLM then refuses maps
    tensors = {
        name: (tensor.half() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in head.state_dict().items()
        if not (is_whole and name in ("d2t", "t2d"))
    }
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise NonFiniteError(f"The head's {name} has values that no float16 holds.", NO_NUMBERS)
    with folder_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "config.json", (json.dumps(fields, indent=2) + "\n").encode())
    write_saved(folder / head.file_name, tensors)


def read_head(head: Head, folder: Path) -> None:
    """Give a head the weights in the folder of a trained one.

    Its draft vocabulary stays. Rows of `lm_head` for tokens that are only in it stay as well.

    Raises:
        CheckpointError: the file is missing or damaged, or its head has other shapes.
    """
    path, own = folder / head.file_name, head.state_dict()
    hint = "Give the folder of a head of this method and model."
    with reading(path, "There is no head to start from", hint):
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if "t2d" in stored:
            was, now = stored.pop("t2d"), own["t2d"].cpu()
            del stored["d2t"]
            if "lm_head.weight" in own:
                rows, both = own["lm_head.weight"].cpu(), was & now
                rows[both[now]] = stored["lm_head.weight"].to(rows.dtype)[both[was]]
                stored["lm_head.weight"] = rows
        for name in (n for n, one in stored.items() if one.shape != own[n].shape):
            raise ValueError(f"{name} is {[*stored[name].shape]}, not {[*own[name].shape]}")
        head.load_state_dict({**own, **stored})


def write_saved(path: Path, state: Mapping[str, object]) -> None:
    """Replace a file of torch's in one move.

    Raises:
        RunFolderError: it cannot be written. It is as before.
    """
    content = BytesIO()
    torch.save(state, content)
    with folder_errors(path, "--out"):
        write_whole(path, content.getvalue())


@contextmanager
def locked_log(work: Path) -> Iterator[LineFile]:
    """The log in a work folder, which no other process trains in."""
    with folder_errors(work, "--out"):
        work.mkdir(parents=True, exist_ok=True)
    with closing(LineFile(work / "log.jsonl", "--out")) as log:
        yield log


@contextmanager
def begin_work(
    out: Path, settings: Mapping[str, object], *, is_resumed: bool
) -> Iterator[LineFile]:
    """The log in the work folder below `out`, which is locked, if this training can be there.

    A resumed one may have more steps, and more tokens that the target writes.

    Raises:
        UserError: another process trains there, `out` cannot be written, holds something already,
            or, when resumed, holds no run or one with other settings.
    """
    _check_folder(out, settings, is_resumed=is_resumed)
    with locked_log(out / _WORK) as log:
        _check_folder(out, settings, is_resumed=is_resumed)  # another may have been faster
        yield log


def write_settings(log: LineFile, settings: Mapping[str, object]) -> None:
    """Write the settings beside the log: the training has begun, and may be resumed."""
    path = log.path.with_name(_SETTINGS)
    with folder_errors(path, "--out"):
        write_whole(path, (json.dumps(settings, indent=2) + "\n").encode())


def _check_folder(out: Path, settings: Mapping[str, object], *, is_resumed: bool) -> None:
    if is_resumed:
        _check_same(out / _WORK / _SETTINGS, settings)
    elif any(one.is_file() and one.stat().st_size for one in out.rglob("*")):
        raise UserError(
            f"--out {out} is not empty.",
            "Go on with the run in it by --resume, or give another folder.",
        )


def _check_same(path: Path, settings: Mapping[str, object]) -> None:
    if not path.exists():
        raise UserError(
            f"There is no training to resume: {path} does not exist.",
            "Leave out --resume to start one in a new folder.",
        )
    hint = "Put the file of this training back, or start anew in another folder."
    with reading(path, "The training cannot go on", hint):
        before = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("it is not a JSON object")
    changed = [
        f"{name} was {before.get(name)!r} and is {settings.get(name)!r}"
        for name in sorted({**settings, **before})
        if before.get(name) != settings.get(name) and not _may_change(name, before, settings)
    ]
    if changed:
        raise UserError(
            f"The training in {path.parent.parent} has other settings: {'; '.join(changed)}.",
            "Repeat them (--steps and --tokens may grow), or start anew in another folder without "
            "--resume.",
        )


def _may_change(name: str, before: Any, settings: Mapping[str, Any]) -> bool:
    """True for more steps, more tokens to write, the same target in another folder, and a template
    that an older training does not name.
    """
    if name == "model":
        return bool(before.get("target_sha256") == settings["target_sha256"])
    if name == "template":
        return name not in before
    was = before.get(name, 0)
    return name in ("num_steps", "num_tokens") and isinstance(was, int) and settings[name] > was
