"""The help of commands, with options below the headings of their groups."""

from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup


class WithHeadings:
    """A mixin for commands whose help has a heading for each group of options."""

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            is_option = param.param_type_name == "option"
            heading = getattr(param, "rich_help_panel", None) or "Options"
            help_row = param.get_help_record(ctx)
            if help_row:
                sections.setdefault(heading if is_option else "Arguments", []).append(help_row)
        write_sections(formatter, sections)


class Part(WithHeadings, TyperCommand):
    """A subcommand, such as `tune profile`."""


class CommandWithParts(WithHeadings, TyperGroup):
    """A command with subcommands, which come last in its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write each heading, and below it the rows, which are pairs of a name and a text."""
    for heading, rows in sections.items():
        with formatter.section(heading):
            formatter.write_dl(rows)
