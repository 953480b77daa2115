"""Write a comparison in every format: on a terminal, and as Markdown, CSV and JSON.

A missing number is empty in CSV, null in JSON, and a dash in Markdown.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.analysis.columns import value_columns, value_or_none
from specbench.analysis.metrics import POOLED
from specbench.errors.kinds import unknown_name
from specbench.judge.comparison import Comparison
from specbench.judge.comparison_table import (
    METRICS,
    NOT_COMPARABLE,
    ComparisonTable,
    build_comparison,
)
from specbench.judge.printer import BLANK, Line, Part, print_page
from specbench.log.difference import Difference
from specbench.report.build import write_files
from specbench.report.export.csv import csv_text
from specbench.report.export.markdown import escape, note_lines, table_lines

FORMATS = ("table", "markdown", "csv", "json")
_ENDINGS = {"markdown": "md", "csv": "csv", "json": "json"}
"""The formats of files, with the endings of their names."""


def check_format(name: str, formats: Sequence[str] = FORMATS) -> str:
    """Return the name if it is a format. Raises `UserError` otherwise."""
    if name not in formats:
        raise unknown_name("format", name, formats)
    return name


def print_comparison(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Print a comparison on stdout, or on the given console."""
    print_page(_page(build_comparison(comparisons)), console)


def _page(table: ComparisonTable) -> Iterator[Part]:
    """The parts of the page on a terminal: the legend, each block, and the notes.

    If runs did different work (not `is_comparable`), the page begins with a warning, and sentences
    are red.
    """
    if not table.is_comparable:
        yield Line(NOT_COMPARABLE, style="bold red")
        yield BLANK
    yield table.legend
    yield BLANK
    for block in table.blocks:
        yield Line(block.heading, style="bold")
        yield BLANK
        yield block.table
        yield Line(block.sentence, style="" if table.is_comparable else "red")
        yield BLANK
    yield table.notes


def render_comparison(comparisons: Sequence[Comparison], form: str) -> str:
    """The text of a format other than the terminal's."""
    if form == "markdown":
        return comparison_markdown(build_comparison(comparisons))
    return comparison_csv(comparisons) if form == "csv" else comparison_json(comparisons)


def write_comparison(comparisons: Sequence[Comparison], out_dir: Path) -> list[Path]:
    """Write comparison.md, .csv and .json to `out_dir`.

    Each file is written completely or not at all. Raises `RunFolderError` if the folder cannot be
    written.
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
    """CSV with a line per pair of runs, temperature, method and task.

    The tasks include "mean" and "pooled".
    """
    import pandas as pd

    rows = [row for comparison in comparisons for row in _rows(comparison)]
    return csv_text(pd.DataFrame(rows))


def comparison_json(comparisons: Sequence[Comparison]) -> str:
    """A JSON document with the lines of the CSV file and the differences between the runs."""
    documents = [
        {
            "reference": comparison.reference.id,
            "subject": comparison.subject.id,
            "is_comparable": not comparison.differences,
            "differences": [*map(_difference, comparison.differences)],
            "cautions": [*map(_difference, comparison.cautions)],
            "left_out": list(comparison.unshared),
            "cells": list(_rows(comparison)),
        }
        for comparison in comparisons
    ]
    document = {"schema": 1, "comparisons": documents}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """A row for each cell: column -> string, number or None.

    Each metric has the numbers of both runs, the ratio with its interval or the reason why it is
    missing, and the p-value of "the ratio is 1". The p-value is None if this was not tested.
    P-values are corrected within the means over tasks, and within the single tasks.
    """
    for key, cell in comparison.cells.items():
        row: dict[str, Any] = {
            "reference": comparison.reference.id,
            "subject": comparison.subject.id,
            "is_comparable": not comparison.differences,
            "method": key.method,
            # the same method, unless two different ones are compared
            "reference_method": comparison.reference_method or key.method,
            "temperature": key.temperature,
            "task": "pooled" if key.task == POOLED else key.task,
            **comparison.load._asdict(),  # columns concurrency and request_rate, 0 if not set
            "num_completions": cell.num_completions,  # that both runs finished
            "num_samples": cell.num_samples,
        }
        for shown_metric in METRICS:
            name, pair = shown_metric.metric, cell.pair(shown_metric.metric)
            row[f"{name}_reference"] = value_or_none(pair.reference)
            row[f"{name}_subject"] = value_or_none(pair.subject)
            # columns of the ratio, of both ends of its interval, and of the reason if it is missing
            row |= value_columns(f"{name}_ratio", pair.ratio)
            row[f"{name}_missing"] = row.pop(f"{name}_ratio_missing")
            row[f"{name}_p_value"] = pair.p_value
        yield row


def _difference(difference: Difference) -> dict[str, str]:
    """A field in which two runs differ, as values of JSON."""
    return {
        "what": difference.what,
        "reference": difference.first,
        "subject": difference.second,
    }
