"""A comparison as Markdown for readers, and as CSV and JSON for machines.

A number that is missing is empty in CSV and null in JSON; a dash stands for it in Markdown.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from specbench.analysis.compare import Comparison
from specbench.analysis.metrics import POOLED
from specbench.analysis.pairs import Pair
from specbench.analysis.sameness import Difference
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.errors import unknown_name
from specbench.report.comparison import (
    NOT_COMPARABLE,
    NUMBERS,
    ComparedBlock,
    ComparisonTable,
    build_comparison,
)
from specbench.report.comparison_sentences import ratio_text
from specbench.report.files import write_files
from specbench.report.markdown import escape

_IDENTITY = (
    "reference", "subject", "is_comparable", "method", "reference_method", "temperature", "task",
    "num_completions", "num_samples",
)  # fmt: skip
_PARTS = ("reference", "subject", "ratio", "ratio_low", "ratio_high", "missing")

COLUMNS = (*_IDENTITY, *(f"{number.name}_{part}" for number in NUMBERS for part in _PARTS))


FORMATS = ("table", "markdown", "csv", "json")


def check_format(name: str) -> str:
    """The name of a form. Raises `UserError` where there is none of that name."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return name


def render_comparison(comparisons: Sequence[Comparison], form: str) -> str:
    """The text of one of the forms but the terminal's."""
    if form == "markdown":
        return comparison_markdown(build_comparison(comparisons))
    return comparison_csv(comparisons) if form == "csv" else comparison_json(comparisons)


def write_comparison(comparisons: Sequence[Comparison], out_dir: Path) -> list[Path]:
    """comparison.md, .csv and .json in `out_dir`; each is whole or not there.

    Raises `RunFolderError` where the folder cannot be written.
    """
    names = {"markdown": "comparison.md", "csv": "comparison.csv", "json": "comparison.json"}
    return write_files(
        out_dir,
        {name: render_comparison(comparisons, form).encode() for form, name in names.items()},
    )


def comparison_markdown(table: ComparisonTable) -> str:
    """The whole table as one Markdown text."""
    lines = [] if table.is_comparable else [f"**{NOT_COMPARABLE}**", ""]
    lines += [f"- **{letter}**: {escape(text)}" for letter, text in table.legend]
    for block in table.blocks:
        lines += ["", f"## {escape(block.heading)}", ""]
        lines += [*_block(block), "", escape(block.sentence)]
    lines += ["", *(f"- **{escape(n.label)}:** {escape(n.text)}" for n in table.notes)]
    return "\n".join(lines) + "\n"


def comparison_csv(comparisons: Sequence[Comparison]) -> str:
    """A line per pair of runs, temperature, method and task; "mean" and "pooled" are over tasks."""
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for comparison in comparisons:
        writer.writerows(_rows(comparison))
    return text.getvalue()


def comparison_json(comparisons: Sequence[Comparison]) -> str:
    """The same lines, with what the runs differ in."""
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


def _block(block: ComparedBlock) -> Iterator[str]:
    letters = sorted(block.letters)
    ratio = " / ".join(block.letters)
    heads = (f"{n.heading} {part}" for n in block.numbers for part in (*letters, ratio))
    header = ["Task", "Method", *heads]
    yield f"| {' | '.join(header)} |"
    yield f"| --- | --- |{' ---: |' * (len(header) - 2)}"
    is_subject_first = letters[0] == block.letters[0]
    for group in block.groups:
        for row in group.rows:
            texts = [escape(group.title), escape(row.label)]
            for number in block.numbers:
                pair = number.of(row.cell)
                values = (pair.subject, pair.reference)[:: 1 if is_subject_first else -1]
                texts += [*map(number.text, values), ratio_text(pair.ratio)]
            yield f"| {' | '.join(texts)} |"


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
            "num_completions": cell.num_completions,
            "num_samples": cell.num_samples,
        }
        for number in NUMBERS:
            values = _values(number.of(cell))
            row |= {f"{number.name}_{part}": value for part, value in values.items()}
        yield row


def _values(pair: Pair) -> dict[str, float | str | None]:
    interval = pair.ratio.interval if isinstance(pair.ratio, Estimate) else None
    return {
        "reference": _number(pair.reference),
        "subject": _number(pair.subject),
        "ratio": _number(pair.ratio),
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "missing": pair.ratio.reason if isinstance(pair.ratio, Missing) else None,
    }


def _number(value: Value) -> float | None:
    return value.value if isinstance(value, Estimate) else None


def _difference(difference: Difference) -> dict[str, str]:
    return {
        "what": difference.what, "reference": difference.first, "subject": difference.second
    }  # fmt: skip
