"""`specbench train`: train a head for a model that has none."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.interrupts import resumable
from specbench.cli.options import CORPUS, Call, TargetModel, quiet_libraries, say, takes
from specbench.errors import UserError
from specbench.log.options import Option, options
from specbench.log.spec import SpecValues
from specbench.models.cards import find_model

Method = Annotated[
    str,
    typer.Argument(metavar="METHOD", help="medusa, hydra, eagle (also serves eagle2) or eagle3."),
]
Data = Annotated[
    Path,
    typer.Option(metavar="FILE|self", help=f"{CORPUS} self: text that the model writes first."),
]
Start = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A trained head whose weights the training begins with."),
]
_VOCABULARY = "Most frequent tokens, which eagle or eagle3 drafts; default: all, or 32000."
LIMITS = {
    "steps": (1, 10**7),
    "rows": (1, 4096),
    "length": (3, 10**6),
    "seed": (0, 2**63 - 1),
    "tokens": (1, 10**12),
    "draft-vocab": (1, 2**28),
    "unroll": (1, 32),
}
"""Smallest and largest value of the options that are numbers."""


def _number(text: str) -> Any:
    """The declaration of an option that is a number."""
    return typer.Option(metavar="N", help=text)


def _check_limits(*numbers: int | None) -> None:
    """Raise UserError unless all numbers, in the order of `LIMITS`, are within them."""
    for (name, (least, most)), value in zip(LIMITS.items(), numbers, strict=True):
        hint = f"Give --{name} from {least} to {most}."
        Option("measure", "note", name=name, least=least, most=most, hint=hint).check(value)


@takes(*options(SpecValues, "device", "template"), *options(Call, "resume", "offline"))
def train(
    values: dict[str, Any],
    call: Call,
    method: Method,
    model: TargetModel,
    data: Data,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the head.")],
    steps: Annotated[int, _number("Training steps; --resume with more extends it.")] = 2000,
    rows: Annotated[int, _number("Examples per step.")] = 8,
    length: Annotated[int, _number("Longest example, in tokens.")] = 1024,
    seed: Annotated[int, _number("Seed of the initial weights and the order.")] = 1,
    tokens: Annotated[int, _number("Tokens of answers that --data self writes.")] = 1_000_000,
    draft_vocab: Annotated[int | None, _number(_VOCABULARY)] = None,
    unroll: Annotated[int, _number("Depths that eagle3 is trained for.")] = 6,
    start: Start = None,
) -> None:
    """Train a method's head for a model that has none."""
    spec = SpecValues(model=model, **values)
    say(f"Starting: {method} for {model}")
    _check_limits(steps, rows, length, seed, tokens, draft_vocab, unroll)
    card = find_model(model)
    if str(data) != "self" and not data.exists():
        raise UserError(f"There is no file {data}.", "Give --data a JSONL file of chats or text.")
    from specbench.measure.local.device import pick_device
    from specbench.models.chat import load_codec
    from specbench.models.hub import resolve_model
    from specbench.training.command import check_method, train_head
    from specbench.training.loop import has_fast_bfloat16
    from specbench.training.recipe import Settings

    check_method(method)
    device = pick_device(spec.device).name
    settings = Settings(
        num_steps=steps,
        num_rows=rows,
        length=length,
        seed=seed,
        num_unrolled=unroll,
        draft_vocab=draft_vocab,
        num_tokens=tokens,
        is_mixed=has_fast_bfloat16(device),
    )
    path = resolve_model(card, offline=call.offline)
    quiet_libraries()
    with resumable(out, "--out", sys.argv[1:]):
        train_head(
            method=method,
            model_dir=path,
            data=data,
            out=out,
            codec=load_codec(path, card, spec.template),
            settings=settings,
            source=card.repo,
            start=start,
            device=device,
            is_resumed=call.resume,
            say=say,
        )
    command = ["specbench", "run", "--model", model, "--method", f"{method}:weights={out}"]
    say(f"Head: {out}\nRun it: {shlex.join(command)}", is_error=False)
