"""Explanations of cells of published tables: the factors that their totals give.

A cell has no samples, so nothing has an interval; the printed digits bound each factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from specbench.analysis.factors import MAT, Factor, Product
from specbench.analysis.stats.estimates import Estimate
from specbench.errors import UserError
from specbench.judge.explanation_formats import ExplainedDocument
from specbench.judge.explanation_page import waterfall
from specbench.judge.explanation_table import ExplainedBlock, ExplainedTables, number_text
from specbench.judge.published_cells import NUMBERS, CellSide, read_sides
from specbench.report.table import Cell, Column, Group, Row, Table
from specbench.report.texts import Note

REST = "the rest"
_EXPLAINED = ("speedup", "tokens/s")
"""The numbers that can be explained. The first number that all sides have is explained."""
_INSIDE = "averaging, counting, prompts, cost and prefill"
"""The factors that only answers can separate."""


class BoundedFactor(NamedTuple):
    """A factor, with the bounds that the printed digits give."""

    factor: Factor
    low: float
    high: float
    """The smallest and the largest ratio that is printed with the same digits."""


def explain_cells(
    texts: Sequence[str], methods: tuple[str, str] | None = None
) -> ExplainedDocument:
    """Explain the number of a cell, or the ratio A / B of two sides, as far as tables allow.

    Of two sides at least one is a cell; the other may be a run. `methods` are as in `read_sides`.

    Raises:
        UserError: a side is unknown, or the sides have neither a speedup nor tokens/s in common.
    """
    sides = read_sides(texts, methods)
    names = [name for name in NUMBERS if all(side.numbers.get(name) for side in sides)]
    explained = _explained(sides, names)
    has_mat = MAT in names
    whole = _bounded(sides, explained, "product")
    factors = [_bounded(sides, explained, REST, over=MAT if has_mat else "")]
    if has_mat:
        factors.append(_bounded(sides, MAT, MAT))
        factors.sort(key=lambda bounded: -abs(math.log(bounded.factor.effect.value)))
    others = [_bounded(sides, name, name) for name in names if name not in (explained, MAT)]
    product = Product(
        subject=whole.factor.subject,
        reference=whole.factor.reference,
        factors=tuple(bounded.factor for bounded in factors),
        steps=(),
        num_shared=0,
        has_prefill=False,
    )
    settings = [*_settings(sides)]
    inside = _INSIDE if has_mat else f"{MAT}, {_INSIDE}"
    notes = [Note("Differs", "; ".join(settings))] if settings else []
    notes.append(Note("Not separable", f"{inside}: tables have no answers, so they are in {REST}"))
    block = ExplainedBlock(
        heading=" against ".join(dict.fromkeys(side.method for side in sides)),
        sentence=_sentence(explained, product),
        table=_table([*factors, whole, *others]),
        notes=tuple(notes),
    )
    legend = [Note(letter, side.label) for letter, side in zip("AB", sides, strict=False)]
    values = {
        "quantity": explained,
        "sides": [side._asdict() for side in sides],
        "ratio": product.ratio,
        "remainder": product.remainder,
        "sentence": block.sentence,
        "factors": [*map(_values, factors)],
        "other_numbers": [*map(_values, others)],
        "settings": settings,
        "not_separable": [notes[-1].text],
    }
    return ExplainedDocument(
        tables=ExplainedTables(tuple(legend), (block,), (_INTERVALS,)),
        falls=[waterfall(product, product.factors, claimed=())],
        explanations=[values],
        is_pair=len(sides) > 1,
    )


def _explained(sides: Sequence[CellSide], names: Sequence[str]) -> str:
    """The number that is explained. `names` are the numbers that all sides have."""
    for name in _EXPLAINED:
        if name in names:
            return name
    names_text = " against ".join(", ".join(side.numbers) or "none" for side in sides)
    raise UserError(
        f"The sides have no speedup or tokens/s in common: {names_text}.", "Name others."
    )


def _bounded(sides: Sequence[CellSide], name: str, label: str, over: str = "") -> BoundedFactor:
    """The number of this name on each side, or its quotient over the number named `over`."""

    def quotients(direction: int) -> list[float]:
        """Each side's number as printed (direction 0), or the smallest (-1) or the largest (1)
        number that is printed with the same digits.
        """
        return [
            (side.numbers[name] + direction * side.rounding.get(name, 0.0))
            / (side.numbers.get(over, 1.0) - direction * side.rounding.get(over, 0.0))
            for side in sides
        ]

    numbers, smallest, largest = map(quotients, (0, -1, 1))
    if len(sides) == 1:
        return BoundedFactor(
            Factor(label, numbers[0], None, Estimate(numbers[0])), smallest[0], largest[0]
        )
    factor = Factor(label, numbers[0], numbers[1], Estimate(numbers[0] / numbers[1]))
    return BoundedFactor(factor, smallest[0] / largest[1], largest[0] / smallest[1])


def _sentence(explained: str, product: Product) -> str:
    """The number or the ratio, and the larger factor."""
    largest = product.factors[0]
    if product.reference is None:
        values = {factor.name: factor.subject for factor in product.factors}
        mat = f"MAT {values[MAT]:.2f} x {values[REST]:.3f} = " if MAT in values else ""
        return f"{mat}{explained} {number_text(product.subject)}."
    numbers = f"{number_text(product.subject)} against {number_text(product.reference)}"
    text = f"A's {explained} is {product.ratio:.3f} times B's: {numbers}."
    if len(product.factors) == 1:
        return text
    return f"{text} The larger factor is {largest.name}, x{largest.effect.value:.3f}."


def _settings(sides: Sequence[CellSide]) -> Iterator[str]:
    """The known conditions in which two sides differ, with both values."""
    first, last = sides[0].facts, sides[-1].facts
    for name in first:
        if name in last and first[name] != last[name]:
            yield f"{name}: {first[name]} against {last[name]}"


def _table(factors: Sequence[BoundedFactor]) -> Table:
    """A row per factor, then the product and the other numbers.

    A row has the number of both sides (of a single cell, the number alone), the factor, and the
    smallest and the largest factor that the rounding of the printed numbers allows.
    """
    is_pair = factors[0].factor.reference is not None
    headings = ("A", "B", "A / B", "by digits") if is_pair else ("value", "factor", "by digits")
    rows = []
    for factor, low, high in factors:
        numbers = [number for number in (factor.subject, factor.reference) if number is not None]
        texts = [*(f"{number:.4g}" for number in numbers), f"x{factor.effect.value:.3f}"]
        texts.append(f"{low:.3f}–{high:.3f}")
        rows.append(Row("", factor.name, tuple(map(Cell, texts))))
    return Table("", tuple(map(Column, headings)), (Group("", tuple(rows)),), heading="Factor")


def _values(bounded: BoundedFactor) -> dict[str, Any]:
    """A factor as plain values."""
    factor, low, high = bounded
    return {
        "factor": factor.name,
        "subject": factor.subject,
        "reference": factor.reference,
        "effect": factor.effect.value,
        "low_by_digits": low,
        "high_by_digits": high,
    }


_INTERVALS = Note(
    "Intervals",
    "none: a published cell has no samples, and nothing is claimed. The last column has the "
    "smallest and the largest factor that the rounding of the printed numbers allows.",
)
