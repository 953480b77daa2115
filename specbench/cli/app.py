"""The program: its commands, in modules that are loaded when a command is called."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from specbench.cli.interrupts import InterruptibleGroup
from specbench.types import VERSION


class Listed(NamedTuple):
    """A command before it is loaded. Without a group it is not listed, but still works.

    `function` is its "module.name" in `cli`, where that differs from the command's name.
    """

    group: str
    text: str
    function: str = ""


COMMANDS = {
    "run": Listed("Measure", "Measure methods on tasks; keep the run and its report."),
    "suite": Listed(
        "Measure", "Measure all runs of a recipe; keep them and one report.", "run.suite"
    ),
    "tune": Listed(
        "Measure", "Find the fastest settings of methods here, and measure them.", "tune.commands"
    ),
    "race": Listed("Measure", "Watch methods answer one prompt."),
    "report": Listed("Look", "Print the table of finished runs, in any format."),
    "compare": Listed(
        "Look", "Compare runs, versions or GPUs on the samples that they share.", "report.compare"
    ),
    "site": Listed("Look", "Write a page over many runs.", "report.site"),
    "check": Listed("Judge", "Fail if a run is slower or accepts less than its baseline runs."),
    "audit": Listed("Judge", "Check that outputs are lossless; tell numerics from bugs."),
    "list": Listed("Prepare", "List methods, models, datasets or runs.", "catalog.list_"),
    "show": Listed("Prepare", "Show one method, model, dataset or run in full.", "catalog.show"),
    "doctor": Listed("Prepare", "Check this machine, and that its baseline is fair."),
    "fetch": Listed("Prepare", "Download prompts, models and draft weights ahead of a run."),
    "train": Listed("Prepare", "Train a method's head for a model that has none."),
    "init": Listed("Prepare", "Write a package with a working method, for you to change."),
    "merge": Listed("", "Join runs of the same work.", "report.merge"),
    "datastore": Listed("", "Make a datastore for the methods rest and sam.", "datastore.commands"),
}
_OLD_NAMES = {
    "verify": "check",
    "contract": "audit --method",
    "schema": "show schema",
    "plan": "report --plan",
}
"""Words that replace a command's older name."""


class Command(TyperCommand):
    """A command whose help has a heading for each group of options, and whose `--ray` needs no
    value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_address(args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            is_option = param.param_type_name == "option"
            heading = getattr(param, "rich_help_panel", None) or "Options"
            if record := param.get_help_record(ctx):
                sections.setdefault(heading if is_option else "Arguments", []).append(record)
        _write_sections(formatter, sections)


def with_address(words: Sequence[str]) -> list[str]:
    """The words of a command. A `--ray` without a value gets this machine's cluster."""
    filled: list[str] = []
    for word, after in pairwise([*words, ""]):
        filled.append(word)
        if word == "--ray" and after not in ("local", "auto") and ":" not in after:
            filled.append("auto")
    return filled


class Commands(InterruptibleGroup):
    """The commands under the headings of their groups. A command is loaded when it is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name, COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if now := _OLD_NAMES.get(args[0]):
            if not ctx.resilient_parsing:  # of a completion
                typer.echo(f"`specbench {args[0]}` is now `specbench {now}`.", err=True)
            args = [*now.split(), *args[1:]]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, about in COMMANDS.items():
            if about.group:
                sections.setdefault(about.group, []).append((name, about.text))
        _write_sections(formatter, sections)


def _write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    for heading, rows in sections.items():
        with formatter.section(heading):
            formatter.write_dl(rows)


def _load(name: str, about: Listed) -> Any:
    """The command, from its module."""
    module, _, function = (about.function or f"{name}.{name}").partition(".")
    made = getattr(import_module(f"specbench.cli.{module}"), function)
    if not isinstance(made, typer.Typer):
        program = typer.Typer(add_completion=False, rich_markup_mode=None)
        program.command(name, cls=Command, hidden=not about.group)(made)
        made = program
    command: Any = typer.main.get_command(made)
    for one in (command, *getattr(command, "commands", {}).values()):
        _put_in_words(one)
    return command


def _put_in_words(command: Any) -> None:
    """Leave Python's types and the variables out of a help; one rule names the variables."""
    for param in command.params:
        param.show_envvar = False
        if param.param_type_name == "argument":  # an option's metavar replaces its type
            param.display_type_rich = lambda **_: ""


_EPILOG = """\b
Examples:
  specbench run --limit 2                   a first look, without a download
  specbench run --model DIR --method pld    a model of yours
  specbench audit --method my_idea          is a new method lossless?

An option is also an environment variable: SPECBENCH_RUN_MODEL is --model of run."""
_app = typer.Typer(
    name="specbench",
    cls=Commands,
    help="Measure how much faster speculative decoding is on this machine, by method and task.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "SPECBENCH"},
    epilog=_EPILOG,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"specbench {VERSION}")
        raise typer.Exit


@_app.callback()
def _global(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere.")
    ] = False,
) -> None:
    """Declare the options of the program itself; `main` reads `--debug`."""


app: Any = typer.main.get_command(_app)
"""The program: `app(words, prog_name=...)`."""
_put_in_words(app)
