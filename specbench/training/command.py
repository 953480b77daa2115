"""`specbench train`: train a head for any target on chats or text, in the official format."""

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
from specbench.training.head_files import read_head
from specbench.training.loop import LogLine, TrainingPlan
from specbench.training.options import TrainingOptions
from specbench.training.own_requests import OVERLAP, task_prompts
from specbench.training.own_text import SELF, Say, check_template, write_own_text
from specbench.training.recipe import HEADS, fit, new_head
from specbench.training.work_folder import begin_work, write_settings

HELD_OUT_EVERY = 20
"""One row in this many is held out for the log. Adding text at the end keeps earlier choices."""
_MOST_HELD_OUT = 100


def train_head(
    method: str,
    model_dir: Path,
    data: Path,
    out: Path,
    codec: ChatCodec,
    *,
    options: TrainingOptions,
    device: str = "cpu",
    is_resumed: bool = False,
    say: Say = print,
    source: str = "",
    start: Path | None = None,
) -> None:
    """Train the method's head for the model in `model_dir`, and write it to `out`.

    `data` is a file of text, or `self`, for which the model first writes `options.num_tokens`
    tokens of answers. A resumed training may have more steps, and more of these tokens. `source` is
    the model's Hub id or folder. `start` is the folder of a head of the same shape, whose weights
    the training starts from. Every evaluation rewrites the official files in `out`.

    Raises:
        UserError: an argument cannot be used, or there is too little text, memory or disk space.
        NonFiniteError: the model's outputs, the loss or the head are NaN or infinite.
    """
    check_method(method)
    left_out: Counter[str] = Counter()
    is_own_text = str(data) == SELF
    examples = [] if is_own_text else read_examples(data, left_out)
    settings = _settings(method, model_dir, codec, data, options, start)
    with begin_work(out, settings, is_resumed=is_resumed) as log:
        say(f"Loading {model_dir} …")
        dtype = torch.bfloat16 if options.is_mixed else torch.float32
        target = load_target(model_dir, dtype=dtype, device=torch.device(device))
        about_text = f"The text is from {data.name}, and was not checked for prompts of tasks."
        if is_own_text:
            write_settings(log, settings)
            data = log.path.with_name("self.jsonl")
            about_text = _write_text(data, target.model, codec, options, say)
            examples = read_examples(data, left_out)
        say(f"Encoding {len(examples)} examples …")
        length = min(options.length, target.context)
        rows = [*encode(codec, examples, length, options.request_weight, left_out)]
        if any(left_out.values()):
            say(f"Left out of {data}: {reasons(left_out)}.")
        held_out_rows, training_rows = _split(rows, data)
        pad_id = min(codec.eos_ids, default=0)
        held_out = ShuffledBatches(held_out_rows, options.seed, options.num_rows, pad_id)
        batches = ShuffledBatches(training_rows, options.seed, options.num_rows, pad_id)
        head = new_head(method, target.model, options, batches)
        if start:
            read_head(head, start)
        say(about_training := _about_training(head, batches, held_out, options))
        write_settings(log, settings)
        plan = TrainingPlan(
            options.schedule, log, on_log=lambda line: say(_progress(line, options))
        )
        rates = fit(head, target.model, options, batches, held_out, plan, out)
        card = _card(method, source or str(model_dir), about_training, about_text, rates)
        write_whole(out / "README.md", card.encode())


def _card(
    method: str, name: str, about_training: str, about_text: str, rates: Mapping[str, float]
) -> str:
    """Return the README.md of a head for the model of this name."""
    return f"""# A head of {method} for {name}

Made by `specbench train {method}`. {about_training}

{about_text}

Measured on the held-out examples: {_rates_text(rates)}.
"""


def _settings(
    method: str,
    model_dir: Path,
    codec: ChatCodec,
    data: Path,
    options: TrainingOptions,
    start: Path | None,
) -> dict[str, object]:
    """Return the content of `settings.json`, which `--resume` checks."""
    settings: dict[str, object] = {
        "method": method,
        "model": str(model_dir),
        "target_sha256": _digest(model_dir),
    }
    if start:
        check_checkpoint(start, what="The head to start from", needs_tokenizer=False)
        settings["start"] = _digest(start)
    settings["data"] = SELF
    if str(data) == SELF:
        check_template(codec)
    else:
        content = data.read_bytes()
        settings["data"] = hashlib.sha256(content).hexdigest()
        settings["data_bytes"] = len(content)
    settings["template"] = list(codec.render([{"role": "user", "content": "?"}]))
    return {**settings, **asdict(options)}


def _digest(folder: Path) -> str:
    """Return one hash of the hashes of a checkpoint's files."""
    hashes = {name: file.sha256 for name, file in identify(folder).files.items()}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def _about_training(
    head: Head, batches: ShuffledBatches, held_out: ShuffledBatches, options: TrainingOptions
) -> str:
    """Return a sentence about the sizes of the head and of its training text."""
    num_parameters = sum(parameter.numel() for parameter in head.parameters())
    num_tokens = sum(len(row.ids) for row in batches.rows)
    return (
        f"Training {num_parameters / 1e6:.1f} M parameters on {len(batches.rows)} examples "
        f"({num_tokens:,} tokens) for {options.num_steps} steps; {len(held_out.rows)} are held out."
    )


def _write_text(
    path: Path, model: PreTrainedModel, codec: ChatCodec, options: TrainingOptions, say: Say
) -> str:
    """Write the target's own text. Return sentences about it for the head's card."""
    prompts, unchecked = task_prompts()
    left_out = write_own_text(path, model, codec, options, prompts, say)
    openings = ""
    if options.openings:
        openings = f", each beginning with one of {len(options.openings)} openings"
    return (
        f"The target wrote the text itself: requests after its chat template{openings}, and "
        f"answers, two thirds of them greedy. No run of {OVERLAP} words occurs in "
        f"any of {len(prompts):,} prompts of tasks. Not checked, because they are not on this "
        f"machine: {', '.join(unchecked) or 'none'}. "
        f"Left out: {reasons(left_out) or 'nothing'}."
    )


def check_method(name: str) -> None:
    """Raise UserError, with the reason, for a method that has no head to train."""
    if name in HEADS:
        return
    method = get(name)
    hint = f"Methods with a head: {', '.join(HEADS)}."
    if method.weights in HEADS:
        raise UserError(
            f"{name} has no head of its own: it runs the head of {method.weights}.",
            f"Train {method.weights}.",
        )
    if method.head == "model":
        raise UserError(f"{name} needs no head: it drafts with a small language model.", hint)
    if method.weights is None:
        raise UserError(f"{name} needs no head: there is nothing to train.", hint)
    raise unknown_name("head", name, HEADS)


def _split(rows: list[Row], data: Path) -> tuple[list[Row], list[Row]]:
    """Split rows into held-out rows for the log and training rows. Refuse fewer than two rows."""
    if len(rows) < 2:
        raise UserError(f"--data {data} holds fewer than two usable examples.", "Give more text.")
    held_out_indices = range(0, len(rows), HELD_OUT_EVERY)[:_MOST_HELD_OUT]
    held_out = [rows[index] for index in held_out_indices]
    training = [row for index, row in enumerate(rows) if index not in held_out_indices]
    return held_out, training


def _progress(line: LogLine, options: TrainingOptions) -> str:
    """Return a line of the log for people, with the time that is left at this pace."""
    step = line["step"]
    text = f"step {step}/{options.num_steps}  loss {line['loss']}"
    num_left = options.num_steps - step
    if num_left > 0:
        left_s = round(line["seconds"] / step * num_left)
        hours = left_s // 3600
        minutes = left_s // 60 % 60
        text += f"  {hours}:{minutes:02}:{left_s % 60:02} left"
    if "held_out" in line:
        text += f"  {_rates_text(line['held_out'])}"
    return text


def _rates_text(rates: Mapping[str, float]) -> str:
    """Return the acceptance on held-out text in words."""
    by_depth = ", ".join(f"{rate:.0%}" for name, rate in rates.items() if name != "mat")
    text = f"shares of draft tokens that match the target's choice, by depth: {by_depth}"
    if "mat" in rates:
        text += f"; MAT of a single path: {rates['mat']:.2f}"
    return text
