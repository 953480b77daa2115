"""A comparison on a terminal, as Markdown, and as CSV and JSON for machines.

A number that is missing is empty in CSV and null in JSON; a dash stands for it in Markdown.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from specbench.analysis.frames import value_columns, value_or_none
from specbench.analysis.metrics import POOLED
from specbench.errors import unknown_name
from specbench.judge.comparison import Comparison
from specbench.judge.comparison_table import (
    NOT_COMPARABLE,
    NUMBERS,
    ComparisonTable,
    build_comparison,
)
from specbench.log.differences import Difference
from specbench.report.build import write_files
from specbench.report.export.csv import csv_text
from specbench.report.export.markdown import escape, note_lines, table_lines
from specbench.report.export.terminal import notes_grid, print_parts, report_console
from specbench.report.layout import draw

FORMATS = ("table", "markdown", "csv", "json")
_ENDINGS = {"markdown": "md", "csv": "csv", "json": "json"}


def check_format(name: str) -> str:
    """The name, if it is a format. Raises `UserError` if not."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return name


def print_comparison(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Print a comparison on stdout, or on the console given."""
    table, console = build_comparison(comparisons), console or report_console()
    parts: list[RenderableType] = []
    if not table.is_comparable:
        parts += [Text(NOT_COMPARABLE, style="bold red"), Text()]
    parts += [notes_grid(table.legend), Text()]
    for block in table.blocks:
        parts += [Text(block.heading, style="bold"), Text(), *draw(block.table, console.width)]
        parts += [Text(block.sentence, style="" if table.is_comparable else "red"), Text()]
    parts.append(notes_grid(table.notes))
    print_parts(parts, console)


def render_comparison(comparisons: Sequence[Comparison], form: str) -> str:
    """The text of a format other than the terminal's."""
    if form == "markdown":
        return comparison_markdown(build_comparison(comparisons))
    return comparison_csv(comparisons) if form == "csv" else comparison_json(comparisons)


def write_comparison(comparisons: Sequence[Comparison], out_dir: Path) -> list[Path]:
    """Write comparison.md, .csv and .json to `out_dir`, each whole or not at all.

    Raises `RunFolderError` if the folder cannot be written.
    """
    texts = {
        f"comparison.{ending}": render_comparison(comparisons, form).encode()
        for form, ending in _ENDINGS.items()
    }
    return write_files(out_dir, texts)


def comparison_markdown(table: ComparisonTable) -> str:
    """The whole table as one Markdown text."""
    lines = [] if table.is_comparable else [f"**{NOT_COMPARABLE}**", ""]
    lines += note_lines(table.legend)
    for block in table.blocks:
        lines += ["", f"## {escape(block.heading)}", ""]
        lines += [*table_lines(block.table), "", escape(block.sentence)]
    return "\n".join([*lines, "", *note_lines(table.notes)]) + "\n"


def comparison_csv(comparisons: Sequence[Comparison]) -> str:
    """A line per pair of runs, temperature, method and task. "mean" and "pooled" are over tasks."""
    import pandas as pd

    return csv_text(pd.DataFrame([row for one in comparisons for row in _rows(one)]))


def comparison_json(comparisons: Sequence[Comparison]) -> str:
    """The lines of the CSV file, with the differences between the runs."""
    document = [
        {
            "reference": one.reference.id,
            "subject": one.subject.id,
            "is_comparable": not one.differences,
            "differences": [_difference(difference) for difference in one.differences],
            "cautions": [_difference(caution) for caution in one.cautions],
            "left_out": list(one.unshared),
            "cells": list(_rows(one)),
        }
        for one in comparisons
    ]
    return json.dumps({"schema": 1, "comparisons": document}, indent=2, ensure_ascii=False) + "\n"


def _rows(one: Comparison) -> Iterable[dict[str, Any]]:
    for key, cell in one.cells.items():
        row: dict[str, Any] = {
            "reference": one.reference.id,
            "subject": one.subject.id,
            "is_comparable": not one.differences,
            "method": key.method,
            "reference_method": one.reference_method or key.method,
            "temperature": key.temperature,
            "task": "pooled" if key.task == POOLED else key.task,
            **one.load._asdict(),
            "num_completions": cell.num_completions,
            "num_samples": cell.num_samples,
        }
        for number in NUMBERS:
            pair, name = cell.pair(number.name), number.name
            row[f"{name}_reference"] = value_or_none(pair.reference)
            row[f"{name}_subject"] = value_or_none(pair.subject)
            row |= value_columns(f"{name}_ratio", pair.ratio)
            row[f"{name}_missing"] = row.pop(f"{name}_ratio_missing")
            row[f"{name}_p_value"] = pair.p_value
        yield row


def _difference(difference: Difference) -> dict[str, str]:
    first, second = difference.first, difference.second
    return {"what": difference.what, "reference": first, "subject": second}
