"""Explanations as one HTML page that needs no network and no other file."""

import math
from collections.abc import Container, Sequence
from itertools import pairwise
from typing import NamedTuple

from specbench.analysis.factors import Factor, Product
from specbench.judge.explanation_table import ExplainedTables
from specbench.report.export.html import page_template

_LABEL = 150
_WIDTH = 560
"""Pixels of the labels and of the bars of a waterfall."""
_ROW = 26
"""Pixels of a row."""


class Bar(NamedTuple):
    """A bar of a waterfall, on a log scale, in pixels."""

    label: str
    text: str
    left: float
    width: float
    tone: str
    """end for a printed number; up or down for a factor, with "faint" if it is not claimed."""


def explanation_html(
    tables: ExplainedTables, falls: Sequence[Sequence[Bar]], *, is_pair: bool
) -> str:
    """The page: a waterfall and a table per method, then the settings and notes."""
    return page_template("explanation.html", __package__).render(
        tables=tables,
        blocks=[*zip(tables.blocks, falls, strict=True)],
        is_pair=is_pair,
        label_width=_LABEL,
        width=_LABEL + _WIDTH + 80,
        row_height=_ROW,
    )


def waterfall(
    product: Product, factors: Sequence[Factor], claimed: Container[str]
) -> tuple[Bar, ...]:
    """A bar per factor, in this order. With a reference, factors that are not claimed are faint."""
    start = 1.0 if product.reference is None else product.reference
    levels = [start]  # the product up to each factor
    for factor in factors:
        levels.append(levels[-1] * factor.effect.value)
    logs = [*map(math.log, levels)]
    span = max(logs) - min(logs) or 1.0
    # pixels from the left edge to each level
    positions = [_LABEL + _WIDTH * (log - min(logs)) / span for log in logs]

    def end_bar(letter: str, number: float, position: float) -> Bar:
        """The narrow bar of a side's printed number."""
        return Bar(letter, f"{number:.3g}", left=position - 2, width=4, tone="end")

    bars = []  # from B's number, by each factor that is not 1, to A's number
    if product.reference is not None:
        bars.append(end_bar("B", start, positions[0]))
    for factor, (begin, end) in zip(factors, pairwise(positions), strict=True):
        if begin == end:
            continue
        tone = "up" if factor.effect.value >= 1 else "down"
        if product.reference is not None and factor.name not in claimed:
            tone += " faint"
        text = f"x{factor.effect.value:.3f}"
        width = max(abs(end - begin), 1)
        bars.append(Bar(factor.name, text, left=min(begin, end), width=width, tone=tone))
    bars.append(end_bar("A", product.subject, positions[-1]))
    return tuple(bars)
