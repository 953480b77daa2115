"""Parameters of commands, and how a shell completes them.

They are made from declared options, or are shared by several commands.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature, signature
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from msgspec import Struct

from specbench import registry
from specbench.errors import terminal_text
from specbench.log.options import Group, Option, option
from specbench.measure.server import NAMES
from specbench.report.console import wrapped
from specbench.types import RUNS

REPORTS = Path("reports")
"""The default folder for reports of runs."""


class Call(Struct, frozen=True):
    """Options of a command that are not stored in the run."""

    # fmt: off
    task: Annotated[tuple[str, ...], option(
        "Card of a task of your own.", "measure", "note", "FILE.toml", form="texts")] = ()
    runs: Annotated[int, option(
        "Make N runs, each in its own process, and pool them.", "measure", "note", least=1)] = 1
    gguf: Annotated[str, option(
        "The GGUF file to use from the folder --model.", "model", "note", "NAME")] = ""
    thorough: Annotated[bool, option(
        "Use all prompts and three passes instead of a first look. Most other options imply it.",
        "measure", "note")] = False
    dry_run: Annotated[bool, option(
        "Only print the plan, its cost and the differences that it could show.", "measure",
        "note")] = False
    ray: Annotated[str, option(
        "Share the prompts among the GPUs of a Ray cluster (docs/cluster.md).", "measure", "note",
        "[local|ADDRESS]")] = ""
    output: Annotated[Path | None, option(
        "Folder of the run or suite.", "output", "note", "DIR")] = None
    resume: Annotated[bool, option("Resume an unfinished run.", "output", "note")] = False
    retry_failed: Annotated[bool, option(
        "With --resume: repeat requests that failed.", "output", "note")] = False
    force: Annotated[bool, option(
        "Allow resuming on a different machine or with different versions.", "output",
        "note")] = False
    offline: Annotated[bool, option("Do not use the network.", "output", "note")] = False
    full: Annotated[bool, option(
        "Print all tables, definitions and facts.", "output", "note")] = False
    sort: Annotated[Literal["paper", "speedup"], option(
        "Order of the methods:", "output", "note", "ORDER",
        choices=("paper", "speedup"), noun="order")] = "speedup"
    quiet: Annotated[bool, option("Print only the table.", "output", "note")] = False
    # fmt: on


Complete = Callable[[str], list[str]]


def completing(names: Callable[[], Iterable[str]]) -> Complete:
    """Return a function that completes words to these names, for an option or argument."""

    def complete(incomplete: str) -> list[str]:
        """Complete the last part of a comma-separated list."""
        head, comma, last = incomplete.rpartition(",")
        return [f"{head}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def _datasets() -> Iterable[str]:
    from specbench.data.tasks import load_cards

    return load_cards()


def _models() -> Iterable[str]:
    from specbench.models.cards import known_models

    return known_models()


def _runs() -> Iterable[str]:
    from specbench.log.folders import list_runs

    return map(str, list_runs(RUNS))


complete_models = completing(_models)
complete_runs = completing(_runs)
_COMPLETERS = {
    "METHOD,...": completing(registry.names),
    "METHOD": completing(registry.names),
    "MODEL": complete_models,
    "TASK,...": completing(_datasets),
    "SOURCE": completing(lambda: ("bundled", "paper", "hub")),
    "[local|ADDRESS]": completing(lambda: ("local", "auto")),
}
"""The completers of options without choices, by metavar."""


def _choices(option: Option) -> list[str]:
    """Return the words that an option takes, or an empty list if it takes any text."""
    names = NAMES if option.metavar == "ENGINE" else option.choices
    words = [name or option.word for name in names]
    return [word for word in words if word]


_GIVEN_SOURCES = ("COMMANDLINE", "ENVIRONMENT")
"""The sources of options that the user gave."""
_GATHERED = ("values", "call", "given")
"""The parameters of a command that `takes` fills with the values of several options."""


def takes(*declared: Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a parameter for each option.

    The command may have three more parameters. `values` are the given values by field, `call` has
    the options of `Call`, and `given` has the names of all options that were given.
    """
    headings = get_args(Group)  # in the order of the help
    in_order = sorted(declared, key=lambda option: headings.index(option.group))
    by_parameter = {option.parameter: option for option in in_order}

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        """Return the command for typer, with a parameter for each option."""
        parameters = signature(command, eval_str=True).parameters

        def call(context: typer.Context, **raw: Any) -> None:
            """Read the raw values of the given options, and call the command with them."""
            given = _given_parameters(context)
            values = {
                by_parameter[name].name: by_parameter[name].read(raw[name])
                for name in given
                if name in by_parameter
            }
            in_call = {name: values.pop(name) for name in Call.__struct_fields__ if name in values}
            for name, value in in_call.items():
                by_parameter[name].check(value)
            if in_call.get("offline"):  # some libraries ask the Hub themselves
                os.environ["HF_HUB_OFFLINE"] = "1"
            gathered = {"values": values, "call": Call(**in_call), "given": given}
            command(
                **{name: raw[name] for name in raw if name not in by_parameter},
                **{name: gathered[name] for name in _GATHERED if name in parameters},
            )

        exposed = [
            Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(
                parameter.replace(kind=Parameter.KEYWORD_ONLY)
                for parameter in parameters.values()
                if parameter.name not in _GATHERED
            ),
            *map(_parameter, in_order),
        ]
        call.__name__ = command.__name__
        call.__doc__ = command.__doc__
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in exposed}
        call.__signature__ = Signature(exposed)  # type: ignore[attr-defined]
        return call

    return wrap


def _given_parameters(context: typer.Context) -> list[str]:
    """Return the parameters that the user gave, on the command line or as variables."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source and source.name in _GIVEN_SOURCES]


def _parameter(declared: Option) -> Parameter:
    """Return a command's parameter for an option, with its flags, help, heading and completion.

    Typer does not parse the texts. `Option.read` does.
    """
    kind: Any = declared.item
    default: Any = declared.default
    if declared.is_many:
        kind, default = list[str], None
    elif declared.form or declared.word or declared.item in (int, float):
        kind, default = str, declared.word or (None if default in (None, ()) else str(default))
    choices = _choices(declared)
    completer = completing(lambda: choices) if choices else _COMPLETERS.get(declared.metavar)
    help_text = declared.help + declared.default_text
    if help_text.endswith(":"):
        *others, last = choices
        help_text += f" {', '.join(others)} or {last}."
    is_pair = declared.item is bool and declared.default is True
    typer_option = typer.Option(
        # Without the flag, typer 0.27 would name the option after its metavar, such as `--MODEL`.
        *([] if is_pair else [declared.flag]),
        metavar=None if declared.item is bool else declared.metavar,
        help=help_text,
        show_default=not declared.unset,
        rich_help_panel=declared.group.capitalize(),
        autocompletion=completer,
    )
    return Parameter(
        declared.parameter,
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if default is not None else kind | None, typer_option],
    )


CORPUS = "Chats (messages, ShareGPT, or turns and reference) or text, as JSONL or JSON."
"""The help for a file to learn from."""


def _run_folders(paths: Sequence[Path]) -> list[Path]:
    from specbench.log.folders import run_folders

    return [run for path in paths for run in run_folders(path)]


TargetModel = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The target: a known model, a folder or a Hub id.",
        autocompletion=complete_models,
    ),
]
RunArguments = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="Folders of runs or of suites, or files in them.",
        callback=_run_folders,
        autocompletion=complete_runs,
    ),
]


def quiet_libraries() -> None:
    """Silence the progress bars and advice of transformers. Call this before importing it."""
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def say(text: str, *, is_error: bool = True) -> None:
    """Print progress and warnings to stderr, or a result to stdout."""
    stream = sys.stderr if is_error else sys.stdout
    typer.echo(wrapped(terminal_text(text), stream), err=is_error)


def write_data(text: str) -> None:
    """Write a document to stdout in UTF-8, whatever the terminal's encoding."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(text)
