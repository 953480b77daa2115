"""`specbench train`: a head for any target from a file of chats or text, in the official format."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from specbench.engine.load import load_target
from specbench.errors import UserError, unknown_name
from specbench.models.checkpoints import identify
from specbench.registry import get
from specbench.training.batches import Row, ShuffledBatches, stack
from specbench.training.examples import Codec, encode, read_examples
from specbench.training.files import begin_work, check_folder
from specbench.training.layouts import check_format
from specbench.training.loop import LogLine, Plan
from specbench.training.recipe import HEADS, Settings, fit, new_head

_HELD_OUT_SHARE = 50
"""One row in 50 is held out for the log, up to a batch of them."""

Say = Callable[[str], None]


def train_head(
    method: str,
    model_dir: Path,
    data: Path,
    out: Path,
    codec: Codec,
    *,
    settings: Settings,
    device: str = "cpu",
    is_resumed: bool = False,
    say: Say = print,
    source: str = "",
) -> None:
    """Train the method's head for the model in `model_dir`, and write it to `out`.

    A training that is resumed may have more steps than before.

    `source` is the model's Hub id or folder for the head's config, by default `model_dir`.
    `codec` writes chats as runs do (`load_codec`). The official files are rewritten at every
    evaluation; checkpoint and log are in `out/training`.

    Raises:
        UserError: the method has no head of its own, the data is missing or broken, or `out`
            cannot be used, all before the model is loaded; or too few examples are left, or
            the disk or the memory is full.
        NonFiniteError: the model's outputs, the loss or the head are NaN or infinite.
    """
    check_method(method)
    check_format(settings.layout, method)
    left_out: Counter[str] = Counter()
    examples = read_examples(data, left_out)
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    files = {name: file.sha256 for name, file in identify(model_dir).files.items()}
    target_digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    described = {
        "method": method,
        "model": str(model_dir),
        "target_sha256": target_digest,
        "data": digest,
        **asdict(settings),
    }
    check_folder(out, described, is_resumed=is_resumed)
    say(f"Loading {model_dir} …")
    dtype = torch.float32 if device == "cpu" or not settings.is_mixed else torch.bfloat16
    target = load_target(model_dir, dtype=dtype, device=torch.device(device))
    say(f"Encoding {len(examples)} examples …")
    length = min(settings.length, target.context)
    rows = list(encode(codec, examples, length, settings.request_weight, left_out))
    if reasons := "; ".join(f"{why} ({num})" for why, num in left_out.most_common() if num):
        say(f"Left out of {data}: {reasons}.")
    if len(rows) < 2:
        raise UserError(f"--data {data} holds less than two usable examples.", "Give more text.")
    held_out, rows = _split(rows, settings.num_rows)
    pad_id, steps = min(codec.eos_ids, default=0), settings.num_steps
    batches = ShuffledBatches(rows, settings.seed, settings.num_rows, pad_id)
    head = new_head(method, target.model, settings, batches)
    count = sum(parameter.numel() for parameter in head.parameters())
    say(f"Training {count / 1e6:.1f} M parameters on {len(rows)} examples for {steps} steps.")
    with begin_work(out, described, is_resumed=is_resumed) as log:
        plan = Plan(settings.schedule, log, on_log=lambda line: say(_progress(line, steps)))
        name = source or str(model_dir)
        try:
            fit(head, target.model, settings, batches, stack(held_out, pad_id), plan, out, name)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate" in str(error):
                size = f"--rows {settings.num_rows} and --length {length}"
                raise UserError(f"{size} need more memory than is free.", "Lower them.") from error
            raise


def check_method(name: str) -> None:
    """Refuse a method that has no head to train. Raises UserError with what there is instead."""
    if name in HEADS:
        return
    method, have = get(name), f"Methods with a head: {', '.join(HEADS)}."
    if method.weights in HEADS:
        raise UserError(
            f"{name} has no head of its own: it runs that of {method.weights}.",
            f"Train {method.weights}.",
        )
    if method.head == "model":
        raise UserError(f"{name} needs no head: it drafts with a small language model.", have)
    if method.weights is None:
        raise UserError(f"{name} needs no head: there is nothing to train.", have)
    raise unknown_name("head", name, HEADS)


def _split(rows: list[Row], most: int) -> tuple[list[Row], list[Row]]:
    """Rows to hold out for the log, and rows to train on; at least one of each."""
    num = min(most, max(1, len(rows) // _HELD_OUT_SHARE))
    chosen = {i * len(rows) // num for i in range(num)}
    return [rows[i] for i in sorted(chosen)], [r for i, r in enumerate(rows) if i not in chosen]


def _progress(line: LogLine, num_steps: int) -> str:
    """A line of the log for people, with the time that is left at the run's pace."""
    step, seconds = int(str(line["step"])), float(str(line["seconds"]))
    text = f"step {step}/{num_steps}  loss {line['loss']}"
    if step < num_steps:
        left = round(seconds / step * (num_steps - step))
        text += f"  {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
    rates = line.get("held_out")
    if isinstance(rates, dict):
        shown = ", ".join(f"{rate:.0%}" for rate in rates.values())
        text += f"  drafted tokens that are the target's choice, by depth: {shown}"
    return text
