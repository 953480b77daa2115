"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from specbench.cli import complete
from specbench.errors import UserError, terminal_text
from specbench.log.state import run_folder, run_folders
from specbench.measure.folder import RUNS as RUNS
from specbench.report.export import FORMATS

REPORTS = Path("reports")
"""Default folder of the reports of runs."""

Number = TypeVar("Number", int, float)
Many = list[str] | None
"""An option that repeats; most take commas too."""

Device = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        help="auto, cpu, cuda, cuda:1 or cuda:0-1. A model too large for one GPU gets several.",
        autocompletion=complete.choice("auto", "cpu", "cuda"),
    ),
]
Threads = Annotated[
    str,
    typer.Option(
        metavar="N",
        help="CPU threads of one operation; auto measures which number is fastest.",
        autocompletion=complete.choice("auto", "1"),
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use no network.")]
Sort = Annotated[
    str,
    typer.Option(
        metavar="ORDER",
        help="Order of the methods: paper or speedup.",
        autocompletion=complete.choice("paper", "speedup"),
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Print all tables, definitions and facts.")]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run's folder, or a file in it.",
        callback=run_folder,
        autocompletion=complete.runs,
    ),
]
RunArguments = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="Folders of runs or of suites, or files in them.",
        callback=lambda paths: [run for path in paths for run in run_folders(path)],
        autocompletion=complete.runs,
    ),
]
Template = Annotated[
    str, typer.Option(metavar="NAME", help="Chat template: auto, thinking, none, or its name.")
]
Weights = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="hub, or stand-in: tiny in the model's real shape, no download.",
        autocompletion=complete.choice("hub", "stand-in"),
    ),
]
Format = Annotated[
    str,
    typer.Option(metavar="FORMAT", help=f"{', '.join(FORMATS)}.", autocompletion=complete.formats),
]


def split(values: Many) -> tuple[str, ...]:
    """The parts of comma-separated values."""
    parts = [part.strip() for value in values or () for part in value.split(",")]
    return tuple(part for part in parts if part)


def temperatures(values: Many) -> tuple[float, ...]:
    """The distinct temperatures in the order given; greedy decoding without any.

    Raises:
        UserError: a value is not a number.
    """
    return numbers("--temperature", values, float) or (0.0,)


def numbers(option: str, values: Many, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """The distinct numbers in the order given.

    Raises:
        UserError: a value is not a number of this kind.
    """
    try:
        return tuple(dict.fromkeys(kind(text) for text in split(values)))
    except ValueError as error:
        raise UserError(f"{option}: {error}.", "Give numbers, such as 1 or 1,4.") from error


def num_threads(text: str) -> int | None:
    """The value of --threads; None for auto.

    Raises:
        UserError: it is neither auto nor a whole number.
    """
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"--threads {text} is no number.", "Give auto, 1 or more.") from error


def words(option: str, text: str) -> tuple[str, ...]:
    """The words of a command line, quoted as in a shell.

    Raises:
        UserError: a quote has no end.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{option} {text}: {error}.", "Close the quotes.") from error


def given(context: typer.Context) -> list[str]:
    """Names of the options that the user gave, in the command or in the environment."""
    return [
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") in ("COMMANDLINE", "ENVIRONMENT")
    ]


def quiet_libraries() -> None:
    """Silence the progress bars and advice of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def say(text: str, *, is_error: bool = True) -> None:
    """Print progress and warnings to stderr, which is for them, or a result to stdout."""
    typer.echo(terminal_text(text), err=is_error)


def write_data(text: str) -> None:
    """Write a document to stdout, in UTF-8 whatever the terminal's encoding is."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)
