"""The program: all commands in the order in which `--help` lists them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from specbench.cli import (
    audit,
    catalog,
    check,
    compare,
    datastore,
    doctor,
    fetch,
    init,
    merge,
    old_names,
    race,
    report,
    run,
    site,
    suite,
    train,
)
from specbench.cli.interrupts import InterruptibleGroup
from specbench.cli.ray_option import RayCommand
from specbench.types import VERSION


class _Commands(InterruptibleGroup):
    """The commands. Their help leaves out Python's types, and variables, which one rule names."""

    def format_help(self, *arguments: Any) -> None:
        _put_in_words(self)
        super().format_help(*arguments)

    def get_command(self, *arguments: Any) -> Any:
        command: Any = super().get_command(*arguments)
        if command:
            _put_in_words(command)
        return command


def _put_in_words(command: Any) -> None:
    for param in command.params:
        param.show_envvar = False
        if param.param_type_name == "argument":  # an option's metavar replaces its type
            param.display_type_rich = lambda **_: ""


app = typer.Typer(
    name="specbench",
    cls=_Commands,
    help="Measure how much faster speculative decoding is on this machine, by method and task.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "SPECBENCH"},
    epilog="An option is also an environment variable: SPECBENCH_RUN_MODEL is --model of run.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"specbench {VERSION}")
        raise typer.Exit


@app.callback()
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


app.command(cls=RayCommand)(run.run)
app.command(cls=RayCommand)(suite.suite)
app.command()(report.report)
app.command()(site.site)
app.command()(compare.compare)
app.command()(merge.merge)
app.command()(check.check)
app.command()(audit.audit)
app.command(name="list")(catalog.list_)
app.command()(catalog.show)
app.command()(doctor.doctor)
app.command()(fetch.fetch)
app.command()(train.train)
app.add_typer(datastore.commands, name="datastore")
app.command()(race.race)
app.command()(init.init)
for _old in (old_names.verify, old_names.contract, old_names.schema, old_names.plan):
    app.command(hidden=True)(_old)
