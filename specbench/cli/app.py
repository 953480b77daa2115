"""The program and its commands. A command's module is loaded when the command is called."""

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from specbench.cli.help import WithHeadings, write_sections
from specbench.cli.interrupts import InterruptibleGroup
from specbench.cli.wrong_words import (
    extra_argument,
    refuse_early_options,
    refuse_file,
    refuse_other_options,
    unknown_variables,
    with_variables,
)
from specbench.errors import UserError
from specbench.types import VERSION


class Listed(NamedTuple):
    """A command before it is loaded."""

    group: str
    """The heading under which the command is listed."""
    summary: str
    """A description of the command."""
    function: str = ""
    """The function as "module.name" in `cli`. Empty if both names are the command's."""


COMMANDS = {
    "run": Listed("Measure", "Measure methods on tasks; store the run and its report."),
    "suite": Listed(
        "Measure", "Measure all runs of a recipe; store them and one report.", "run.suite"
    ),
    "tune": Listed(
        "Measure",
        "Find and measure the fastest settings of methods on this machine.",
        "tune.commands",
    ),
    "race": Listed("Measure", "Watch methods answer one prompt."),
    "report": Listed("Look", "Print the table of finished runs, in any format."),
    "compare": Listed(
        "Look", "Compare runs, versions or GPUs on the samples that they share.", "report.compare"
    ),
    "site": Listed("Look", "Write a web page about many runs.", "report.site"),
    "convert": Listed("Look", "Read result files of other tools into a run."),
    "check": Listed("Judge", "Fail if a run is slower or accepts less than its baseline runs."),
    "audit": Listed("Judge", "Check that outputs are lossless; separate rounding from bugs."),
    "list": Listed("Prepare", "List methods, models, datasets, runs or tunes.", "catalog.list_"),
    "show": Listed("Prepare", "Show one method, model, dataset or run in full.", "catalog.show"),
    "doctor": Listed("Prepare", "Check this machine, and whether its baseline is fair."),
    "fetch": Listed("Prepare", "Download prompts, models and draft weights ahead of a run."),
    "train": Listed("Prepare", "Train a method's head for a model that has none."),
    "init": Listed("Prepare", "Write a package with a working method, for you to change."),
    "merge": Listed("Prepare", "Join runs of the same work.", "report.merge"),
    "datastore": Listed(
        "Prepare", "Make a datastore for the methods rest and sam.", "datastore.commands"
    ),
}
_OLD_NAMES = {
    "verify": "check",
    "contract": "audit --method",
    "schema": "show schema",
    "plan": "report --plan",
}
"""The words that replace the former name of a command."""


class Command(WithHeadings, TyperCommand):
    """A command whose help has a heading for each group of options.

    Its option `--ray` needs no value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a call. click removes the words that it understands.

        Raises:
            UserError: an option has another name here, or there is an extra word.
        """
        words = with_address(args)
        flags = {flag for param in self.params for flag in param.opts}
        name = ctx.info_name or ""
        refuse_other_options(name, flags, words)
        names = [param.name for param in self.params if param.name]
        if not ctx.resilient_parsing:  # true while a shell completes the words
            for sentence in unknown_variables(ctx.auto_envvar_prefix or "", names):
                typer.echo(sentence, err=True)
        ctx.allow_extra_args = True  # `extra_argument` has a better message than click
        extra_words = super().parse_args(ctx, words)
        if extra_words and not ctx.resilient_parsing:
            raise extra_argument(name, flags, extra_words)
        for param in self.params:
            refuse_file(param, ctx.params.get(param.name))
        return extra_words

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise with_variables(error, ctx) from error


def with_address(words: Sequence[str]) -> list[str]:
    """Add the address "auto", for this machine's cluster, after each `--ray` without a value."""
    completed: list[str] = []
    for word, next_word in pairwise([*words, ""]):
        completed.append(word)
        is_address = next_word in ("local", "auto") or ":" in next_word
        if word == "--ray" and not is_address:
            completed.append("auto")
    return completed


class Commands(InterruptibleGroup):
    """The commands under the headings of their groups. A command is loaded when it is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {"-h", "--help", *(flag for param in self.params for flag in param.opts)}
        refuse_early_options(COMMANDS, flags, args)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name, COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        new_name = _OLD_NAMES.get(args[0])
        if new_name:
            if not ctx.resilient_parsing:  # true while a shell completes the words
                typer.echo(f"`specbench {args[0]}` is now `specbench {new_name}`.", err=True)
            args = [*new_name.split(), *args[1:]]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, listed in COMMANDS.items():
            sections.setdefault(listed.group, []).append((name, listed.summary))
        write_sections(formatter, sections)


def _load(name: str, listed: Listed) -> Any:
    module_name, _, attribute = (listed.function or f"{name}.{name}").partition(".")
    declared = getattr(import_module(f"specbench.cli.{module_name}"), attribute)
    if isinstance(declared, typer.Typer):  # it has commands of its own
        program = declared
    else:
        program = typer.Typer(add_completion=False, rich_markup_mode=None)
        program.command(name, cls=Command)(declared)
    command: Any = typer.main.get_command(program)
    for command_or_part in (command, *getattr(command, "commands", {}).values()):
        _simplify_help(command_or_part)
    return command


def _simplify_help(command: Any) -> None:
    """Leave types and environment variables out of a command's help.

    The epilog explains how the variables are named.
    """
    for param in command.params:
        param.show_envvar = False
        if param.param_type_name == "argument":  # the metavar of an option replaces its type
            param.display_type_rich = lambda **_: ""


_EPILOG = """\b
Examples:
  specbench run --limit 2                   a first look, without a download
  specbench run --model DIR --method pld    your own model
  specbench audit --method my_idea          is a new method lossless?

An environment variable can set any option: SPECBENCH_RUN_MODEL sets run --model."""
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
        bool, typer.Option("--debug", help="Show the traceback of an error; goes with any command.")
    ] = False,
) -> None:
    """Declare the options of the program itself. `main` reads `--debug`."""


app: Any = typer.main.get_command(_app)
"""The program, which is called as `app(words, prog_name=...)`."""
_simplify_help(app)
