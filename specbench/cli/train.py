"""`specbench train`: train a head for a model that has none."""

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
from specbench.measure.spec import RunSpec

Method = Annotated[
    str,
    typer.Argument(metavar="METHOD", help="medusa, hydra, eagle (also serves eagle2) or eagle3."),
]
Data = Annotated[
    Path,
    typer.Option(metavar="FILE|self", help=f"{CORPUS} self: the model first writes the text."),
]
_START = "Start from the weights of this trained head."
_OPENINGS = "Beginnings of requests for --data self, one per line."
_VOCABULARY = "Size of the draft vocabulary; default: all tokens for eagle, 32000 for eagle3."


def _number(help_text: str, least: int, most: int) -> Any:
    """Declare an option that is a number from `least` to `most`."""

    def check(param: typer.CallbackParam, given_number: int | None) -> int | None:
        name = str(param.name).replace("_", "-")
        hint = f"Give --{name} from {least} to {most}."
        option = Option("measure", "note", name=name, least=least, most=most, hint=hint)
        option.check(given_number)
        return given_number

    return typer.Option(metavar="N", help=help_text, callback=check)


def _check_inputs(spec: RunSpec, data: Path, openings: Path | None) -> None:
    """Check the name of the model, and the files that the training will read.

    Raises:
        UserError: the model is unknown, a file does not exist, or --openings has no use.
    """
    _ = spec.card
    is_written_by_model = str(data) == "self"
    if openings and not is_written_by_model:
        raise UserError("--openings is only for --data self.", f"Leave it out with {data}.")
    if not is_written_by_model and not data.exists():
        raise UserError(f"There is no file {data}.", "Give --data a JSONL file of chats or text.")


@takes(
    *options(SpecValues, "device", "template", "template_args"), *options(Call, "resume", "offline")
)
def train(
    values: dict[str, Any],
    call: Call,
    method: Method,
    model: TargetModel,
    data: Data,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the head.")],
    steps: Annotated[int, _number("Steps; to train further, --resume with more.", 1, 10**7)] = 2000,
    rows: Annotated[int, _number("Examples per step.", 1, 4096)] = 8,
    length: Annotated[int, _number("Longest example, in tokens.", 3, 10**6)] = 1024,
    seed: Annotated[int, _number("Seed for new weights and example order.", 0, 2**63 - 1)] = 1,
    tokens: Annotated[int, _number("Answer tokens for --data self.", 1, 10**12)] = 1_000_000,
    draft_vocab: Annotated[int | None, _number(_VOCABULARY, 1, 2**28)] = None,
    unroll: Annotated[int, _number("Levels of the draft that eagle3 is trained for.", 1, 32)] = 6,
    start: Annotated[Path | None, typer.Option(metavar="DIR", help=_START)] = None,
    openings: Annotated[Path | None, typer.Option(metavar="FILE", help=_OPENINGS)] = None,
) -> None:
    """Train a method's head for a model that has none."""
    spec = RunSpec(model=model, **values)
    say(f"Starting: {method} for {model}")
    _check_inputs(spec, data, openings)
    from specbench.measure.local.device import pick_device
    from specbench.models.chat import load_codec
    from specbench.models.hub import resolve_model
    from specbench.training.command import check_method, train_head
    from specbench.training.optimizers import has_fast_bfloat16
    from specbench.training.options import TrainingOptions
    from specbench.training.own_text import read_openings

    check_method(method)
    device = pick_device(spec.device).name
    options = TrainingOptions(
        num_steps=steps,
        num_rows=rows,
        length=length,
        seed=seed,
        num_unrolled=unroll,
        draft_vocab=draft_vocab,
        num_tokens=tokens,
        is_mixed=has_fast_bfloat16(device),
        openings=read_openings(openings) if openings else None,
    )
    path = resolve_model(spec.card, offline=call.offline)
    quiet_libraries()
    with resumable(out, "--out", sys.argv[1:]):
        codec = load_codec(path, spec.card, spec.template, spec.template_args)
        train_head(
            method,
            path,
            data,
            out,
            codec,
            options=options,
            source=spec.card.repo,
            start=start,
            device=device,
            is_resumed=call.resume,
            say=say,
        )
    say(f"Head: {out}\nRun it: {_run_command(model, method, out)}", is_error=False)


def _run_command(model: str, method: str, head: Path) -> str:
    """Return the command that measures a method with a trained head."""
    words = ["specbench", "run", "--model", model, "--method", f"{method}:weights={head}"]
    return shlex.join(words)
