"""Explanations in every format: on a terminal, as Markdown, JSON, a data frame and a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from specbench.analysis.frames import value_columns
from specbench.judge.explanation import Explanation
from specbench.judge.explanation_page import explanation_html
from specbench.judge.explanation_table import (
    build_explanation,
    not_separable,
    quantity,
    sentence,
)
from specbench.judge.printer import BLANK, Line, Part, print_page
from specbench.report.build import write_files
from specbench.report.export.markdown import escape, note_lines, table_lines

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("table", "markdown", "json", "html")
_ENDINGS = {"markdown": "md", "json": "json", "html": "html"}
"""The formats of files, and how their names end."""


def print_explanation(explanations: Sequence[Explanation], console: Console | None = None) -> None:
    """Print explanations on stdout, or on the console given."""
    print_page(_page(explanations), console)


def _page(explanations: Sequence[Explanation]) -> Iterator[Part]:
    """The parts of the page on a terminal: the runs, a block per explanation, and the notes."""
    tables = build_explanation(explanations)
    yield tables.legend
    yield BLANK
    for block in tables.blocks:
        yield Line(block.heading, style="bold")
        yield Line(block.sentence)
        yield BLANK
        yield block.table
        if block.notes:
            yield block.notes
            yield BLANK
    yield tables.notes


def render_explanation(explanations: Sequence[Explanation], form: str) -> str:
    """The text of a format other than the terminal's."""
    if form == "html":
        return explanation_html(explanations)
    return explanation_json(explanations) if form == "json" else explanation_markdown(explanations)


def write_explanation(explanations: Sequence[Explanation], out_dir: Path) -> list[Path]:
    """Write explanation.md, .json and .html to `out_dir`, each whole or not at all.

    Raises `RunFolderError` if the folder cannot be written.
    """
    texts = {
        f"explanation.{ending}": render_explanation(explanations, form).encode()
        for form, ending in _ENDINGS.items()
    }
    return write_files(out_dir, texts)


def explanation_markdown(explanations: Sequence[Explanation]) -> str:
    """All blocks as one Markdown text."""
    tables = build_explanation(explanations)
    lines = [*note_lines(tables.legend)]
    for block in tables.blocks:
        lines += ["", f"## {escape(block.heading)}", "", escape(block.sentence), ""]
        lines += [*table_lines(block.table), "", *note_lines(block.notes)]
    return "\n".join([*lines, "", *note_lines(tables.notes)]) + "\n"


def explanation_json(explanations: Sequence[Explanation]) -> str:
    """All numbers, with the settings that differ."""
    documents = [
        {
            "quantity": quantity(explanation),
            **_side_values("subject", explanation),
            **_side_values("reference", explanation),
            "ratio": None if explanation.no_times else explanation.product.ratio,
            "remainder": _finite(explanation.product.remainder),
            "num_shared": explanation.product.num_shared,
            "intervals": explanation.scope.text,
            "has_phases": any(side.phases for side in explanation.sides),
            "sentence": sentence(explanation),
            "factors": [row for row in _rows(explanation) if not row["part_of"]],
            "under_cost": [row for row in _rows(explanation) if row["part_of"]],
            "step_unit": explanation.step_unit,
            "settings": [
                {"text": setting.text, "can_move": list(setting.factors)}
                for setting in explanation.settings
            ],
            "not_separable": not_separable(explanation),
            "other_work": list(explanation.work),
        }
        for explanation in explanations
    ]
    return json.dumps({"schema": 1, "explanations": documents}, indent=2, ensure_ascii=False) + "\n"


def explanation_frame(explanations: Sequence[Explanation]) -> DataFrame:
    """A row per factor of each explanation, and per line under cost."""
    import pandas as pd

    rows = []
    for explanation in explanations:
        key = explanation.subject.key
        columns = {"method": key.method, "temperature": key.temperature, **key.load._asdict()}
        if explanation.reference:
            columns["reference_method"] = explanation.reference.key.method
        rows += [{**columns, **row} for row in _rows(explanation)]
    return pd.DataFrame(rows)


def _side_values(name: str, explanation: Explanation) -> dict[str, Any]:
    """The run, method, conditions, number and phases of a side; empty if there is none."""
    side = explanation.subject if name == "subject" else explanation.reference
    if side is None:
        return {}
    number = None if explanation.no_times else getattr(explanation.product, name)
    values = {"run": side.header.id, **side.key._asdict(), "load": side.key.load._asdict()}
    return {name: {**values, "value": number, "phases": dict(side.phases)}}


def _finite(number: float) -> float | None:
    """The number; None if times are missing."""
    return number if math.isfinite(number) else None


def _rows(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """A row per factor in the order of the product, then a row per line under cost."""
    factors = [factor for factor in explanation.product.factors if factor in explanation.factors]
    for factor in (*factors, *explanation.step_lines):
        is_factor = factor in factors
        yield {
            "factor": factor.name,
            "part_of": "" if is_factor else "cost",
            "subject": factor.subject,
            "reference": factor.reference,
            **value_columns("effect", factor.effect),
            "p_value": explanation.p_values.get(factor.name),
            "is_claimed": explanation.is_claimed(factor.name),
            "is_without_cause": explanation.is_without_cause(factor.name),
            "causes": explanation.causes(factor.name),
        }
