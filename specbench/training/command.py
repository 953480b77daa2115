"""`specbench train`: a head for any target from a file of chats or text, in the official format."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import PreTrainedModel

from specbench.engine.load import load_target
from specbench.errors import UserError, unknown_name
from specbench.log.files import write_whole
from specbench.models.chat import ChatCodec
from specbench.models.checkpoints import check_checkpoint, identify
from specbench.registry import get
from specbench.training.batches import Row, ShuffledBatches
from specbench.training.examples import encode, read_examples, reasons
from specbench.training.head import Head
from specbench.training.loop import LogLine, Plan, begin_work, read_head, write_settings
from specbench.training.own_text import OVERLAP, SELF, Say, task_prompts, write_own_text
from specbench.training.recipe import HEADS, Settings, fit, new_head

HELD_OUT_SHARE, _MOST_HELD_OUT = 20, 100
"""One row in 20 is held out for the log, 100 at most; the same ones if more text follows."""


def train_head(
    method: str,
    model_dir: Path,
    data: Path,
    out: Path,
    codec: ChatCodec,
    *,
    settings: Settings,
    device: str = "cpu",
    is_resumed: bool = False,
    say: Say = print,
    source: str = "",
    start: Path | None = None,
) -> None:
    """Train the method's head for the model in `model_dir`, and write it to `out`.

    `data` is a file of text, or `self`: the model then writes `settings.num_tokens` tokens of
    answers first. A training that is resumed may have more steps, and more such tokens.
    `source` is the model's Hub id or folder, and `start` the folder of a head of the same shape,
    whose weights the training begins with. Every evaluation rewrites the official files in `out`.

    Raises:
        UserError: no such head, unusable `data`, `out` or `start`; too little text, memory or disk.
        NonFiniteError: the model's outputs, the loss or the head are NaN or infinite.
    """
    check_method(method)
    left_out: Counter[str] = Counter()
    is_own = str(data) == SELF
    examples = [] if is_own else read_examples(data, left_out)
    described = _described(method, model_dir, codec, data, settings, start)
    with begin_work(out, described, is_resumed=is_resumed) as log:
        say(f"Loading {model_dir} …")
        dtype = torch.bfloat16 if settings.is_mixed else torch.float32
        target = load_target(model_dir, dtype=dtype, device=torch.device(device))
        text = f"The text is {data.name}, not checked for prompts of tasks."
        if is_own:
            write_settings(log, described)
            data = log.path.with_name("self.jsonl")
            text = _write_text(data, target.model, codec, settings, say)
            examples = read_examples(data, left_out)
        say(f"Encoding {len(examples)} examples …")
        length = min(settings.length, target.context)
        rows = list(encode(codec, examples, length, settings.request_weight, left_out))
        if told := reasons(left_out):
            say(f"Left out of {data}: {told}.")
        pad_id, parts = min(codec.eos_ids, default=0), _split(rows, data)
        held_out, batches = (
            ShuffledBatches(part, settings.seed, settings.num_rows, pad_id) for part in parts
        )
        head = new_head(method, target.model, settings, batches)
        if start:
            read_head(head, start)
        say(begun := _begun(head, batches, held_out, settings))
        write_settings(log, described)
        plan = Plan(settings.schedule, log, on_log=lambda line: say(_progress(line, settings)))
        rates = _rates(fit(head, target.model, settings, batches, held_out, plan, out))
        name = source or str(model_dir)
        card = _CARD.format(method=method, name=name, begun=begun, text=text, rates=rates)
        write_whole(out / "README.md", card.encode())


_CARD = """# A head of {method} for {name}

Made by `specbench train {method}`. {begun}

{text}

On the examples that are held out: {rates}.
"""


def _described(
    method: str,
    model_dir: Path,
    codec: ChatCodec,
    data: Path,
    settings: Settings,
    start: Path | None,
) -> dict[str, object]:
    """The settings that identify a training, for `--resume`."""
    about: dict[str, object] = {"method": method, "model": str(model_dir)}
    about["target_sha256"] = _digest(model_dir)
    if start:
        check_checkpoint(start, what="The head to start from", needs_tokenizer=False)
        about["start"] = _digest(start)
    about["data"] = SELF
    if str(data) != SELF:
        content = data.read_bytes()
        about |= {"data": hashlib.sha256(content).hexdigest(), "data_bytes": len(content)}
    about["template"] = list(codec.render([{"role": "user", "content": "?"}]))
    return {**about, **asdict(settings)}


def _digest(folder: Path) -> str:
    files = {name: file.sha256 for name, file in identify(folder).files.items()}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _begun(
    head: Head, batches: ShuffledBatches, held_out: ShuffledBatches, settings: Settings
) -> str:
    count = sum(parameter.numel() for parameter in head.parameters())
    tokens = sum(len(row.ids) for row in batches.rows)
    return (
        f"Training {count / 1e6:.1f} M parameters on {len(batches.rows)} examples "
        f"({tokens:,} tokens) for {settings.num_steps} steps; {len(held_out.rows)} are held out."
    )


def _write_text(
    path: Path, model: PreTrainedModel, codec: ChatCodec, settings: Settings, say: Say
) -> str:
    """Write the target's own text, and return what the head's card says about it."""
    prompts, unchecked = task_prompts()
    left_out = write_own_text(path, model, codec, settings, prompts, say)
    begun = f", with {len(settings.openings)} openings in turn" if settings.openings else ""
    return (
        f"The target wrote the text itself: requests after its chat template{begun}, and "
        f"answers, two in three greedy. No run of {OVERLAP} words is in one of "
        f"{len(prompts):,} prompts of tasks. Not checked, since they are not on this "
        f"machine: {', '.join(unchecked) or 'none'}. "
        f"Left out: {reasons(left_out) or 'nothing'}."
    )


def check_method(name: str) -> None:
    """Refuse a method that has no head to train. Raises UserError with what there is instead."""
    if name in HEADS:
        return
    method, have = get(name), f"Methods with a head: {', '.join(HEADS)}."
    if method.weights in HEADS:
        raise UserError(
            f"{name} has no head of its own: it runs the head of {method.weights}.",
            f"Train {method.weights}.",
        )
    if method.head == "model":
        raise UserError(f"{name} needs no head: it drafts with a small language model.", have)
    if method.weights is None:
        raise UserError(f"{name} needs no head: there is nothing to train.", have)
    raise unknown_name("head", name, HEADS)


def _split(rows: list[Row], data: Path) -> tuple[list[Row], list[Row]]:
    """Rows to hold out for the log, and rows to train on. Raises UserError if one has none."""
    if len(rows) < 2:
        raise UserError(f"--data {data} holds less than two usable examples.", "Give more text.")
    most = _MOST_HELD_OUT * HELD_OUT_SHARE
    chosen = range(0, min(len(rows), most), HELD_OUT_SHARE)
    return [rows[i] for i in chosen], [row for i, row in enumerate(rows) if i not in chosen]


def _progress(line: LogLine, settings: Settings) -> str:
    """A line of the log for people, with the time that is left at the run's pace."""
    step, num_steps = line["step"], settings.num_steps
    text = f"step {step}/{num_steps}  loss {line['loss']}"
    if step < num_steps:
        left = round(line["seconds"] / step * (num_steps - step))
        text += f"  {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
    return f"{text}  {_rates(line['held_out'])}" if "held_out" in line else text


def _rates(rates: Mapping[str, float]) -> str:
    """Held-out acceptance in words."""
    shown = ", ".join(f"{rate:.0%}" for name, rate in rates.items() if name != "mat")
    text = f"drafted tokens that are the target's choice, by depth: {shown}"
    return f"{text}; one path: MAT {rates['mat']:.2f}" if "mat" in rates else text
