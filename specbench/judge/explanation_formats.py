"""Write explanations in every format: on a terminal, as Markdown, JSON, a data frame and a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from specbench.analysis.columns import value_columns, value_or_none
from specbench.analysis.factors import COST, MAT
from specbench.judge.explained_bins import place_text
from specbench.judge.explanation import Explanation
from specbench.judge.explanation_page import Bar, explanation_html, waterfall
from specbench.judge.explanation_sentences import quantity, sentence
from specbench.judge.explanation_table import ExplainedTables, build_explanation, not_separable
from specbench.judge.printer import BLANK, Line, Part, print_page
from specbench.report.build import write_files
from specbench.report.export.markdown import escape, note_lines, table_lines

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("table", "markdown", "json", "html")
_ENDINGS = {"markdown": "md", "json": "json", "html": "html"}
"""The formats of files, with the endings of their names."""


class ExplainedDocument(NamedTuple):
    """An explanation, ready for every format."""

    tables: ExplainedTables
    falls: Sequence[Sequence[Bar]]
    """The waterfall of each block; empty if times are not evidence."""
    explanations: Sequence[Mapping[str, Any]]
    """All numbers of each block, with the settings that differ."""
    is_pair: bool
    """True if ratios of two numbers are explained."""


def explained_document(explanations: Sequence[Explanation]) -> ExplainedDocument:
    """Make a document of explanations, which are all about the same runs."""
    return ExplainedDocument(
        tables=build_explanation(explanations),
        falls=[
            ()
            if explanation.no_times
            else waterfall(
                explanation.product,
                explanation.factors,
                claimed=[*filter(explanation.is_claimed, explanation.p_values)],  # their names
            )
            for explanation in explanations
        ],
        explanations=[*map(_values, explanations)],
        is_pair=explanations[0].reference is not None,
    )


def print_explanation(document: ExplainedDocument, console: Console | None = None) -> None:
    """Print an explanation on stdout, or on the given console."""
    print_page(_page(document.tables), console)


def _page(tables: ExplainedTables) -> Iterator[Part]:
    """The parts of the page on a terminal: the runs, a block per explanation, and the notes."""
    yield tables.legend
    yield BLANK
    for block in tables.blocks:  # below the legend, which has the runs in words
        yield Line(block.heading, style="bold")
        yield Line(block.sentence)
        yield BLANK
        yield block.table
        if block.notes:
            yield block.notes
            yield BLANK
    yield tables.notes


def render_explanation(document: ExplainedDocument, form: str) -> str:
    """The text of a format other than the terminal's."""
    if form == "html":
        return explanation_html(document.tables, document.falls, is_pair=document.is_pair)
    if form == "markdown":
        return _markdown(document.tables)
    values = {"schema": 1, "explanations": document.explanations}
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def write_explanation(document: ExplainedDocument, out_dir: Path) -> list[Path]:
    """Write explanation.md, .json and .html to `out_dir`.

    Each file is written completely or not at all. Raises `RunFolderError` if the folder cannot be
    written.
    """
    texts = {
        f"explanation.{ending}": render_explanation(document, form).encode()
        for form, ending in _ENDINGS.items()
    }
    return write_files(out_dir, texts)


def _markdown(tables: ExplainedTables) -> str:
    """All blocks as one Markdown text."""
    lines = [*note_lines(tables.legend)]
    for block in tables.blocks:
        lines += ["", f"## {escape(block.heading)}", "", escape(block.sentence), ""]
        lines += [*table_lines(block.table), "", *note_lines(block.notes)]
    return "\n".join([*lines, "", *note_lines(tables.notes)]) + "\n"


def _values(explanation: Explanation) -> dict[str, Any]:
    """All numbers of an explanation as values of JSON, with the settings that differ."""
    return {
        "quantity": quantity(explanation),
        **_side_values("subject", explanation),
        **_side_values("reference", explanation),
        "ratio": None if explanation.no_times else explanation.product.ratio,
        "remainder": None if explanation.no_times else explanation.product.remainder,
        "num_shared": explanation.product.num_shared,
        "intervals": explanation.scope.text,
        "has_phases": any(side.phases for side in explanation.sides),
        "sentence": sentence(explanation),
        "factors": [row for row in _rows(explanation) if not row["part_of"]],
        "under_cost": [row for row in _rows(explanation) if row["part_of"] == COST],
        "by_place": [row for row in _rows(explanation) if row["part_of"] == MAT],
        "step_unit": explanation.step_unit,
        "settings": [
            {"text": setting.text, "can_move": list(setting.factors)}
            for setting in explanation.settings
        ],
        "not_separable": not_separable(explanation),
        "other_work": list(explanation.work),  # why `compare` would refuse the two runs
    }


def explanation_frame(explanations: Sequence[Explanation]) -> DataFrame:
    """The data frame of explanations, with a row per factor, per line under cost (the method's step
    and the baseline's), and per bin of MAT (the steps in a range of positions, for example).

    The first columns are the same in all rows of an explanation: method, temperature, concurrency
    and request_rate of the subject, and reference_method if there is a reference. `_rows` has the
    other columns.
    """
    import pandas as pd

    rows = []
    for explanation in explanations:
        key = explanation.subject.key
        # a load has the fields concurrency and request_rate, which are 0 if not set
        columns = {"method": key.method, "temperature": key.temperature, **key.load._asdict()}
        if explanation.reference:
            columns["reference_method"] = explanation.reference.key.method
        rows += [{**columns, **row} for row in _rows(explanation)]
    return pd.DataFrame(rows)


def _side_values(name: str, explanation: Explanation) -> dict[str, Any]:
    """Facts about a side as values of JSON, under the side's name ("subject" or "reference"). Empty
    if there is no such side.

    The facts are the run, the method, the temperature, the load, the printed number, and the phases
    as shares of a step.
    """
    side = explanation.subject if name == "subject" else explanation.reference
    if side is None:
        return {}
    number = None if explanation.no_times else getattr(explanation.product, name)
    values = {"run": side.header.id, **side.key._asdict(), "load": side.key.load._asdict()}
    return {name: {**values, "value": number, "phases": dict(side.phases)}}


def _rows(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Rows of an explanation: column -> string, number, list or None. There is one per factor in
    the order of the product, then one per line under cost, and one per bin of MAT.

    The lines under cost are the method's step and the baseline's. Their column `part_of` has
    "cost". A bin has the steps in a range of positions, context lengths or turns. Its column has
    "MAT". If times are not evidence, MAT is the only factor, and there are no lines under cost.
    """
    factors = [factor for factor in explanation.product.factors if factor in explanation.factors]
    for factor in (*factors, *explanation.step_lines):
        yield {
            "factor": factor.name,
            "part_of": "" if factor in factors else COST,
            "subject": factor.subject,
            "reference": factor.reference,
            **value_columns("effect", factor.effect),  # with the ends of the interval
            "p_value": explanation.p_values.get(factor.name),
            "is_claimed": explanation.is_claimed(factor.name),
            "is_without_cause": explanation.is_without_cause(factor.name),
            "causes": explanation.causes(factor.name),
        }
    for step_bin in explanation.bins:
        yield {
            "factor": place_text(step_bin),
            "part_of": MAT,
            "subject": value_or_none(step_bin.subject),
            "reference": value_or_none(step_bin.reference),
            **value_columns("effect", step_bin.ratio),
            "p_value": step_bin.p_value,
            "is_claimed": step_bin.is_claimed,
            "is_without_cause": False,
            "causes": explanation.causes(MAT),
        }
