"""Explain numbers of published tables by the factors that the tables themselves give.

A published cell has no samples, so nothing has an interval. The printed digits bound each factor.
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
from specbench.judge.explanation_sentences import number_text
from specbench.judge.explanation_table import ExplainedBlock, ExplainedTables
from specbench.judge.published_cells import NUMBERS, CellSide, read_sides
from specbench.report.table import Cell, Row, Table, group_table
from specbench.report.texts import Note

REST = "the rest"
"""The factor of everything but MAT. It is the explained number / MAT, or the number itself if MAT
is unknown.
"""
_EXPLAINED = ("speedup", "tokens/s")
"""The numbers that can be explained. The first one that all sides have is explained."""
_INSIDE = "averaging, counting, prompts, cost and prefill"
"""The factors in the rest, in words. Only the answers of a run can separate them."""


class BoundedFactor(NamedTuple):
    """A factor, with the bounds that the printed digits give."""

    factor: Factor
    low: float
    high: float
    """The smallest and the largest effect that agree with the printed digits."""


def explain_cells(
    texts: Sequence[str], methods: tuple[str, str] | None = None
) -> ExplainedDocument:
    """Explain the number of a cell, or the ratio A / B of two sides, in a document for printing.

    The number, a speedup or tokens/s, is the product of MAT and a rest that tables do not split.

    Args:
        texts: the name of a cell or the folder of a run, for each side. At least one is a cell.
        methods: a method per side, which is used if the side is a run; None: the first cell's.

    Raises:
        UserError: a side is unknown, or the sides have neither a speedup nor tokens/s in common.
    """
    sides = read_sides(texts, methods)
    # the numbers that all sides have, without numbers of 0, which have no ratio
    names = [name for name in NUMBERS if all(side.numbers.get(name) for side in sides)]
    explained = _explained(sides, names)  # the name of the explained number
    product_row = _bounded(sides, explained, "product")
    factors = [_bounded(sides, explained, REST, divisor=MAT if MAT in names else "")]
    if MAT in names:
        factors.append(_bounded(sides, MAT, MAT))
        factors.sort(key=lambda row: -abs(math.log(row.factor.effect.value)))  # larger first
    other_numbers = [_bounded(sides, name, name) for name in names if name not in (explained, MAT)]
    product = Product(
        subject=product_row.factor.subject,
        reference=product_row.factor.reference,
        factors=tuple(bounded.factor for bounded in factors),
        steps=(),  # tables do not have the times of steps
        num_shared=0,  # tables have no requests
        has_prefill=False,
    )
    settings = [*_settings(sides)]
    inside = _INSIDE if MAT in names else f"{MAT}, {_INSIDE}"
    not_separable = f"{inside}: tables have no answers, so these factors are in {REST}"
    differs = [Note("Differs", "; ".join(settings))] if settings else []
    block = ExplainedBlock(
        heading=" against ".join(dict.fromkeys(side.method for side in sides)),
        sentence=_sentence(explained, product),
        table=_table([*factors, product_row, *other_numbers]),
        notes=(*differs, Note("Not separable", not_separable)),
    )
    legend = [Note(letter, side.label) for letter, side in zip("AB", sides, strict=False)]
    explanation_values = {
        "quantity": explained,
        "sides": [side._asdict() for side in sides],
        "ratio": product.ratio,
        "remainder": product.remainder,  # ratio / product of the factors, which is about 1
        "sentence": block.sentence,
        "factors": [*map(_json_values, factors)],
        "other_numbers": [*map(_json_values, other_numbers)],  # these are not factors
        "settings": settings,
        "not_separable": [not_separable],
    }
    return ExplainedDocument(
        tables=ExplainedTables(tuple(legend), (block,), (_INTERVALS,)),
        falls=[waterfall(product, product.factors, claimed=())],  # nothing is claimed
        explanations=[explanation_values],
        is_pair=len(sides) > 1,
    )


def _explained(sides: Sequence[CellSide], names: Sequence[str]) -> str:
    """The name of the number that is explained, among the `names` that all sides have.

    Raises:
        UserError: no number that can be explained is among them.
    """
    for name in _EXPLAINED:
        if name in names:
            return name
    names_text = " against ".join(", ".join(side.numbers) or "none" for side in sides)
    raise UserError(
        f"The sides have no speedup or tokens/s in common: {names_text}.", "Name others."
    )


def _bounded(sides: Sequence[CellSide], name: str, label: str, divisor: str = "") -> BoundedFactor:
    """A factor of one or two sides, with the bounds that the printed digits give.

    A side's part of the factor is the number called `name`, divided by the number called `divisor`
    if that is not empty. The effect is the part of the only side, or the quotient of both parts.
    `label` becomes the factor's name. The numbers of a run are not rounded.
    """

    def parts(direction: int) -> list[float]:
        """The part of each side [sides]. Direction 0 takes the numbers as printed. Directions -1
        and 1 give the smallest and the largest part that agree with the printed digits.
        """
        return [
            (side.numbers[name] + direction * side.rounding.get(name, 0.0))
            / (side.numbers.get(divisor, 1.0) - direction * side.rounding.get(divisor, 0.0))
            for side in sides
        ]

    printed, smallest, largest = map(parts, (0, -1, 1))
    if len(sides) == 1:
        return BoundedFactor(
            Factor(label, printed[0], None, Estimate(printed[0])), smallest[0], largest[0]
        )
    return BoundedFactor(
        Factor(label, printed[0], printed[1], Estimate(printed[0] / printed[1])),
        smallest[0] / largest[1],
        largest[0] / smallest[1],
    )


def _sentence(explained: str, product: Product) -> str:
    """The result in words. `explained` is the name of the explained number.

    For two sides, the sentence has the ratio of their numbers, and the larger factor if there are
    two. For a single side, it has the number, as the product of MAT and the rest if MAT is known.
    """
    if product.reference is None:  # a single side
        numbers = {factor.name: factor.subject for factor in product.factors}
        beginning = f"MAT {numbers[MAT]:.2f} x {numbers[REST]:.3f} = " if MAT in numbers else ""
        return f"{beginning}{explained} {number_text(product.subject)}."
    both_numbers = f"{number_text(product.subject)} against {number_text(product.reference)}"
    ratio_sentence = f"A's {explained} is {product.ratio:.3f} times B's: {both_numbers}."
    if len(product.factors) == 1:
        return ratio_sentence
    largest = product.factors[0]  # the factors are sorted
    return f"{ratio_sentence} The larger factor is {largest.name}, x{largest.effect.value:.3f}."


def _settings(sides: Sequence[CellSide]) -> Iterator[str]:
    """The known conditions in which two sides differ, with both values. A single side has none."""
    subject, reference = sides[0].facts, sides[-1].facts  # condition -> its value
    for name in subject:
        if name in reference and subject[name] != reference[name]:
            yield f"{name}: {subject[name]} against {reference[name]}"


def _table(factors: Sequence[BoundedFactor]) -> Table:
    """The table of an explanation, with a row per factor.

    A row has the number of each side, the effect of the factor, and the smallest and the largest
    effect that the rounding of the printed numbers allows.
    """
    is_pair = factors[0].factor.reference is not None
    headings = ("A", "B", "A / B", "by digits") if is_pair else ("value", "factor", "by digits")
    rows = []
    for factor, low, high in factors:
        # of each side; the reference is None if there is only one side
        numbers = [number for number in (factor.subject, factor.reference) if number is not None]
        cell_texts = [*(f"{number:.4g}" for number in numbers), f"x{factor.effect.value:.3f}"]
        cell_texts.append(f"{low:.3f}–{high:.3f}")
        rows.append(Row(method="", label=factor.name, cells=tuple(map(Cell, cell_texts))))
    return group_table(headings, rows, heading="Factor")


def _json_values(bounded: BoundedFactor) -> dict[str, Any]:
    """A factor as values of JSON."""
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
    "none: a published cell has no samples, so nothing is claimed. The last column has the factors "
    "that the rounding of the printed numbers allows.",
)
