"""Write explanations as one HTML page that needs no network and no other file."""

import math
import operator
from collections.abc import Container, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from specbench.analysis.factors import Factor, Product
from specbench.judge.explanation_table import ExplainedTables
from specbench.report.export.html import page_template

_LABEL = 150
_WIDTH = 560
"""Widths in pixels of the labels and of the bars of a waterfall."""
_ROW = 26
"""Height in pixels of a row."""


class Bar(NamedTuple):
    """A bar of a waterfall, on a log scale, in pixels."""

    label: str
    """The name of a factor, or the letter of a side."""
    text: str
    """The number that the bar shows."""
    left: float
    """Pixels from the left edge of the waterfall to the bar."""
    width: float
    tone: str
    """The style: end for a printed number, up or down for a factor. "faint" follows if the factor
    is not claimed.
    """


def explanation_html(
    tables: ExplainedTables, falls: Sequence[Sequence[Bar]], *, is_pair: bool
) -> str:
    """The page, with a waterfall and a table per method, then the settings and notes."""
    return page_template("explanation.html", __package__).render(
        tables=tables,
        blocks=[*zip(tables.blocks, falls, strict=True)],
        is_pair=is_pair,
        label_width=_LABEL,
        width=_LABEL + _WIDTH + 80,  # with room for the number to the right of the last bar
        row_height=_ROW,
    )


def waterfall(
    product: Product, factors: Sequence[Factor], claimed: Container[str]
) -> tuple[Bar, ...]:
    """The bars of a waterfall, from top to bottom: B's printed number, each factor that is not 1,
    and A's printed number.

    On a log scale, a factor's bar goes from the number before the multiplication by the factor to
    the number after it. The bars of a single side (without a reference) start at 1, without B.

    Args:
        product: the ratio A / B, or only A's number, as a product of factors.
        factors: all factors of the product, in the order of the bars.
        claimed: names of the factors that differ significantly from 1. If there is a reference, the
            bars of other factors are faint.
    """
    start = 1.0 if product.reference is None else product.reference
    effects = [factor.effect.value for factor in factors]
    # the numbers before the first factor, and after each: [1 + factors]
    logs = [*map(math.log, accumulate(effects, operator.mul, initial=start))]
    span = max(logs) - min(logs) or 1.0  # 1 if no factor changes anything
    # pixels from the left edge to each number: [1 + factors]
    positions = [_LABEL + _WIDTH * (log - min(logs)) / span for log in logs]

    def end_bar(letter: str, number: float, position: float) -> Bar:
        """The bar of a side's printed number: 4 pixels wide, with its middle at the position."""
        return Bar(letter, f"{number:.3g}", left=position - 2, width=4, tone="end")

    bars = []
    if product.reference is not None:
        bars.append(end_bar("B", start, positions[0]))
    for factor, (before, after) in zip(factors, pairwise(positions), strict=True):
        if before == after:  # the factor is 1
            continue
        tone = "up" if factor.effect.value >= 1 else "down"
        if product.reference is not None and factor.name not in claimed:
            tone += " faint"
        effect_text = f"x{factor.effect.value:.3f}"
        left, width = min(before, after), max(abs(after - before), 1)  # at least a pixel wide
        bars.append(Bar(factor.name, effect_text, left=left, width=width, tone=tone))
    bars.append(end_bar("A", product.subject, positions[-1]))
    return tuple(bars)
