"""`specbench train`: a head for any target from a file of chats or text, in the official format."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from specbench.engine.load import load_target
from specbench.errors import UserError, unknown_name
from specbench.registry import get
from specbench.zoo.heads.chats import Codec, Row, RowBatches, encode, read_examples, stack
from specbench.zoo.heads.files import begin_work, check_folder
from specbench.zoo.heads.recipe import METHODS, Recipe, new_head, run
from specbench.zoo.optim import Schedule
from specbench.zoo.train import Line, Plan

_HELD_OUT_SHARE = 50
"""One row in so many is held out for the log, up to a batch of them."""

_SAVE_EVERY = 100

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may choose of a training run. A step trains on `num_rows` rows.

    A row is a chat, cut at `length` tokens. `request_weight` is what a request's tokens count
    where an answer's count 1.
    """

    num_steps: int = 2000
    num_rows: int = 8
    length: int = 1024
    request_weight: float = 0.3
    seed: int = 1
    matrix_lr: float = 0.02
    other_lr: float = 0.002
    num_heads: int = 4
    num_unrolled: int = 6
    draft_vocab: int = 32_000
    is_mixed: bool = True

    def recipe(self) -> Recipe:
        return Recipe(
            self.num_steps, self.num_rows, self.matrix_lr, self.other_lr, num_heads=self.num_heads,
            num_unrolled=self.num_unrolled, draft_vocab=self.draft_vocab, is_mixed=self.is_mixed,
        )  # fmt: skip


def train_head(
    method: str,
    model_dir: Path,
    data: Path,
    out: Path,
    codec: Codec,
    *,
    settings: Settings | None = None,
    device: str = "cpu",
    is_resumed: bool = False,
    say: Say = print,
) -> Path:
    """Train the method's head for the model in `model_dir`, and write it to `out`.

    `codec` writes chats as runs do (`bench.templates.load_codec`). The official files are
    rewritten at every evaluation; checkpoint and log are in `out/training`. Returns `out`.

    Raises:
        UserError: the method has no head of its own, the data is missing or broken, or `out`
            cannot be used, all before the model is loaded; or too few examples are left.
    """
    check_method(method)
    settings = settings or Settings()
    examples = read_examples(data)
    described = {"method": method, "model": str(model_dir), "data": _sha256(data)}
    described |= asdict(settings)
    check_folder(out, described, is_resumed=is_resumed)
    say(f"Loading {model_dir} …")
    dtype = torch.float32 if device == "cpu" or not settings.is_mixed else torch.bfloat16
    target = load_target(model_dir, dtype=dtype, device=torch.device(device))
    say(f"Encoding {len(examples)} examples …")
    length = min(settings.length, target.context)
    rows = list(encode(codec, examples, length, settings.request_weight))
    if len(rows) < 2:
        raise UserError(f"--data {data} holds less than two usable examples.", "Give more text.")
    work = begin_work(out, described)
    _train(method, target.model, rows, min(codec.eos_ids, default=0), settings, work, out, say)
    return out


def _train(
    method: str,
    model: PreTrainedModel,
    rows: list[Row],
    pad_id: int,
    settings: Settings,
    work: Path,
    out: Path,
    say: Say,
) -> None:
    held_out, rows = _split(rows, settings.num_rows)
    torch.manual_seed(settings.seed)
    batches = RowBatches(rows, settings.seed, settings.num_rows, pad_id)
    recipe, steps = settings.recipe(), settings.num_steps
    head = new_head(method, model, recipe, batches)
    count = sum(parameter.numel() for parameter in head.parameters())
    say(f"Training {count / 1e6:.1f} M parameters on {len(rows)} examples for {steps} steps.")
    plan = Plan(
        Schedule(steps, min(recipe.warmup, steps // 10)),
        work,
        evaluate_every=_SAVE_EVERY,
        save_every=_SAVE_EVERY,
        notify=_teller(steps, say),
    )
    run(head, model, recipe, batches, {"held_out": stack(held_out, pad_id)}, plan, out)


def check_method(name: str) -> None:
    """Refuse a method that has no head to train. Raises UserError with what there is instead."""
    if name in METHODS:
        return
    have = f"Methods with a head: {', '.join(METHODS)}."
    if name == "eagle2":
        raise UserError("eagle2 has no head of its own: it runs that of eagle.", "Train eagle.")
    if name == "sps":
        raise UserError("sps needs no head: it drafts with a small language model.", have)
    if get(name).weights is None:
        raise UserError(f"{name} needs no head: there is nothing to train.", have)
    raise unknown_name("head", name, METHODS)


def _split(rows: list[Row], most: int) -> tuple[list[Row], list[Row]]:
    """Rows to hold out for the log, and rows to train on; at least one of each."""
    num = min(most, max(1, len(rows) // _HELD_OUT_SHARE))
    chosen = {i * len(rows) // num for i in range(num)}
    return [rows[i] for i in sorted(chosen)], [r for i, r in enumerate(rows) if i not in chosen]


def _teller(num_steps: int, say: Say) -> Callable[[Line], None]:
    """Tells every line of the log, with the time that is left at the run's pace."""

    def tell(line: Line) -> None:
        step, seconds = int(str(line["step"])), float(str(line["seconds"]))
        text = f"step {step}/{num_steps}  loss {line['loss']}"
        if step < num_steps:
            text += f"  {seconds / step * (num_steps - step) / 60:.0f} min left"
        rates = line.get("held_out")
        if isinstance(rates, dict):
            shown = ", ".join(f"{rate:.0%}" for rate in rates.values())
            text += f"  guesses that are the target's choice, by depth: {shown}"
        say(text)

    return tell


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
