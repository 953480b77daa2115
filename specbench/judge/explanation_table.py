"""Explanations as tables, sentences and notes, as every rendering shows them.

A is the subject and B the reference, whose ratio A / B is explained.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specbench.analysis.factors import (
    COST,
    FACTORS,
    IN_FLIGHT,
    MAT,
    PER_TOKEN,
    PREFILL,
    PROMPTS,
    Factor,
)
from specbench.judge.causes import Setting
from specbench.judge.explained_bins import bin_notes, bin_rows
from specbench.judge.explanation import Explanation
from specbench.judge.imported_sides import file_notes, publisher_notes, steps_by_counters
from specbench.log.machine import UNKNOWN
from specbench.log.run import loads_of
from specbench.report import facts, formats
from specbench.report.table import Cell, Column, Group, Row, Table, Tone
from specbench.report.texts import Note

_MOST_NAMED = 3
"""Most settings that a sentence names."""
_MOST = 0.5
"""A factor with more than this share of all changes, on a log scale, carries most of the ratio."""


class ExplainedBlock(NamedTuple):
    """The explanation of one method."""

    heading: str
    sentence: str
    table: Table
    notes: tuple[Note, ...]
    """The settings that differ for this method alone, and factors that cannot be separated."""


class ExplainedTables(NamedTuple):
    """The content of a rendering."""

    legend: tuple[Note, ...]
    """Both runs in words."""
    blocks: tuple[ExplainedBlock, ...]
    notes: tuple[Note, ...]
    """The settings that differ for all methods, other work, definitions."""


def build_explanation(explanations: Sequence[Explanation]) -> ExplainedTables:
    """The tables of all explanations, which are of one pair of runs, or of one run."""
    first = explanations[0]
    common: list[Setting] = []  # settings that differ for all methods
    if len(explanations) > 1:
        in_all = set.intersection(*({*explanation.settings} for explanation in explanations))
        common = [setting for setting in first.settings if setting in in_all]
    moved = {name for explanation in explanations for name in explanation.moved}
    notes = [*_cause_notes(common, [name for name in FACTORS if name in moved])]
    if first.work:
        text = f"`compare` refuses these runs without --explain: {'; '.join(first.work)}"
        notes.append(Note("Different work", text))
    return ExplainedTables(
        legend=tuple(_legend(first)),
        blocks=tuple(_block(explanation, common) for explanation in explanations),
        notes=(*notes, *file_notes(first), *bin_notes(explanations), *_definitions(explanations)),
    )


def _legend(explanation: Explanation) -> Iterator[Note]:
    for letter, side in zip("AB", explanation.sides, strict=False):
        header = side.header
        model = facts.model_phrase(header)
        yield Note(letter, f"{header.id}: {model}; {header.device_phrase}")


def _block(explanation: Explanation, common: Sequence[Setting]) -> ExplainedBlock:
    specific = [setting for setting in explanation.settings if setting not in common]
    notes = _cause_notes(specific, explanation.moved)
    return ExplainedBlock(
        heading(explanation),
        sentence(explanation),
        _table(explanation),
        (*publisher_notes(explanation), *notes, *_doubts(explanation)),
    )


def heading(explanation: Explanation) -> str:
    """The method, temperature and load; of both sides where they differ."""
    sides = explanation.sides
    temperatures = [side.temperature_text for side in sides]
    unknown = "Unknown temperature"
    parts = (
        [side.label for side in sides],
        [unknown if text == UNKNOWN else f"Temperature={text}" for text in temperatures],
        [side.key.load.text for side in sides if loads_of(explanation.subject.header.spec.values)],
    )
    texts = (" against ".join(dict.fromkeys(texts)) for texts in parts)
    return ", ".join(filter(None, texts))


def quantity(explanation: Explanation) -> str:
    """The explained number, in words."""
    is_throughput = any(factor.name == IN_FLIGHT for factor in explanation.product.factors)
    if explanation.subject.pairs.has_baseline:
        return "throughput ratio to vanilla" if is_throughput else "speedup"
    return "throughput" if is_throughput else "tokens/s"


def sentence(explanation: Explanation) -> str:
    """The ratio, and the factor that carries most of it with its cause."""
    product = explanation.product
    if explanation.no_times:
        return f"No speedup is explained: {explanation.no_times}."
    if product.reference is None:
        return _sentence_of_one(explanation)
    numbers = f"{number_text(product.subject)} against {number_text(product.reference)}"
    text = f"A's {quantity(explanation)} is {product.ratio:.3f} times B's: {numbers}."
    if explanation.num_equal:
        text += f" Tokens and steps are equal in all {explanation.num_equal} turns of both."
    largest, *others = explanation.factors
    changes = [abs(math.log(factor.effect.value)) for factor in explanation.factors]
    if changes[0] <= _MOST * sum(changes):
        shown = _shown(explanation, explanation.factors) or " No factor is shown to differ from 1."
        return f"{text} No factor carries most of the ratio.{shown}"
    name = largest.name
    causes = explanation.causes(name)
    do_others_cancel_it = abs(math.log(product.ratio)) < changes[0] / 2
    opening = "The largest factor is" if do_others_cancel_it else "Most of the ratio is"
    carrier = f"{text} {opening} {name}, x{largest.effect.value:.3f}"
    named = [*causes[:_MOST_NAMED]]
    if len(causes) > _MOST_NAMED:
        named.append(f"and {len(causes) - _MOST_NAMED} more")
    differing = f" Settings that differ and can move it: {'; '.join(named)}." if causes else ""
    if explanation.is_imported and not causes:
        differing = " The files name no differing setting that can move it."
    if explanation.is_without_cause(name):
        return f"{carrier}, without a cause: {_percent(largest)}."
    if explanation.is_claimed(name):
        differing = differing or " This factor follows from the others."
        return f"{carrier}.{differing}{_shown(explanation, others)}"
    if explanation.p_values.get(name) is not None:
        return f"{carrier}, which is not shown to differ from 1.{_shown(explanation, others)}"
    reason = "its interval covers prompts only" if largest.effect.interval else "it has no interval"
    return f"{carrier}. Nothing is claimed about this factor, because {reason}.{differing}"


def _shown(explanation: Explanation, factors: Sequence[Factor]) -> str:
    """The factors that are claimed, as a further sentence; empty if none is."""
    claimed = [factor for factor in factors if explanation.is_claimed(factor.name)]
    texts = [f"{factor.name} x{factor.effect.value:.3f}" for factor in claimed]
    return f" Shown to differ from 1: {', '.join(texts)}." if texts else ""


def _percent(factor: Factor) -> str:
    return f"{100 * abs(factor.effect.value - 1):.1f} %"


def _sentence_of_one(explanation: Explanation) -> str:
    """The sentence for a run alone: "MAT 6.23, yet speedup 0.61: a step costs ... of vanilla."."""
    product = explanation.product
    total = f"{quantity(explanation)} {number_text(product.subject)}"
    factors = {factor.name: factor.subject for factor in product.factors}
    if MAT not in factors:
        return f"{total}; steps are unknown."
    link = "yet" if product.subject < factors[MAT] else "and"
    text = f"MAT {factors[MAT]:.2f}, {link} {total}"
    cost = factors[COST]  # in steps of vanilla, or in seconds without vanilla
    if explanation.subject.pairs.has_baseline:
        return f"{text}: a step costs {cost:.2f} steps of vanilla."
    return f"{text}: a step takes {number_text(1e3 * cost)} ms."


def number_text(number: float) -> str:
    """A number with three digits, or all before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"


def _table(explanation: Explanation) -> Table:
    """A row per factor, the largest first, with the lines under cost; the product is last."""
    is_pair = explanation.reference is not None
    headings = ("A", "B", "A / B", "95 %") if is_pair else ("value", "factor", "95 %")
    rows = []
    for factor in explanation.factors:
        if factor.name not in explanation.moved:  # it is 1, except for rounding
            continue
        rows.append(_row(factor.name, factor, explanation))
        if factor.name == COST:
            unit = "" if explanation.step_unit == "s" else f", in {explanation.step_unit}"
            lines = explanation.step_lines
            rows += [_row(f"· {line.name}{unit}", line, explanation) for line in lines]
        if factor.name == MAT:
            rows += bin_rows(explanation)
    rows += _phase_rows(explanation, len(headings))
    product = explanation.product
    if not explanation.no_times:
        numbers = [number_text(product.subject)]
        if product.reference is not None:
            numbers.append(number_text(product.reference))
        texts = [*numbers, f"x{product.ratio:.3f}", ""]
        rows.append(Row("", "product", tuple(map(Cell, texts))))
    return Table("", tuple(map(Column, headings)), (Group("", tuple(rows)),), heading="Factor")


def _row(label: str, factor: Factor, explanation: Explanation) -> Row:
    """The row of a factor: its value on each side, the quotient, and the interval of the quotient.

    The rows below the cost of a step have labels that differ from the names: "· target, in ms".
    """
    is_part_of_cost = factor.name != label
    unit = explanation.step_unit if is_part_of_cost else ""
    # Without vanilla in the run, the cost of a step is in seconds instead of steps of vanilla.
    is_in_seconds = factor.name in (COST, PER_TOKEN) and not explanation.subject.pairs.has_baseline
    values = [factor.subject] if factor.reference is None else [factor.subject, factor.reference]
    if unit == "s" or is_in_seconds:
        value_texts = [f"{number_text(1e3 * value)} ms" for value in values]
    else:
        value_texts = [f"{value:#.4g}" for value in values]
    interval = factor.effect.interval
    interval_text = f"{interval.low:.3f}–{interval.high:.3f}" if interval else formats.NONE
    effect_text = f"x{factor.effect.value:.3f}"
    if is_part_of_cost and explanation.reference is None:  # one run: the seconds say all
        effect_text = interval_text = ""
    tone: Tone = "unsure"  # the colour of the quotient
    if explanation.is_claimed(factor.name):
        tone = "good" if factor.effect.value > 1 else "bad"
    effect = Cell(effect_text, "" if is_part_of_cost else tone)
    return Row("", label, (*map(Cell, value_texts), effect, Cell(interval_text)))


def _phase_rows(explanation: Explanation, num_columns: int) -> Iterator[Row]:
    """The phases under cost, as shares of a step. They are a sum, not factors."""
    sides = explanation.sides
    for name in next((side.phases for side in sides if side.phases), ()):
        texts = [
            f"{100 * side.phases[name]:.1f} %" if side.phases else formats.NONE for side in sides
        ]
        texts += [""] * (num_columns - len(texts))
        yield Row("", f"· {name}", tuple(map(Cell, texts)))


def _cause_notes(settings: Sequence[Setting], names: Sequence[str]) -> Iterator[Note]:
    """The settings that differ, by the factor that they can move."""
    for name in names:
        if texts := [setting.text for setting in settings if name in setting.factors]:
            yield Note(f"Can move {name}", "; ".join(texts))


def _doubts(explanation: Explanation) -> Iterator[Note]:
    """Notes on factors without a cause, and on factors that cannot be separated."""
    for factor in explanation.factors:
        if explanation.is_without_cause(factor.name):
            text = f"{factor.name}: {_percent(factor)}, but no setting that can move it differs"
            yield Note("Without a cause", text, is_warning=True)
    yield from (Note("Not separable", text) for text in not_separable(explanation))
    if any(side.phases for side in explanation.sides):
        yield Note("Phases", "shares of a step; timing them slows the step down")


def not_separable(explanation: Explanation) -> list[str]:
    """Factors and settings that cannot be separated, in words."""
    product = explanation.product
    names = [factor.name for factor in product.factors]
    by_counters = "".join(map(steps_by_counters, explanation.sides))
    inseparable = {
        f"{PROMPTS}: the sides have no prompt in common": not product.num_shared,
        f"{PREFILL}: one side has only total times, so {COST} includes it": not (
            product.has_prefill or explanation.no_times
        ),
        f"{MAT}{by_counters} and {COST}: the steps of one side are unknown": PER_TOKEN in names,
    }
    for name in names:
        text = f"the settings that can move {name}: change one at a time"
        inseparable[text] = explanation.is_claimed(name) and len(explanation.causes(name)) > 1
    return [text for text, is_inseparable in inseparable.items() if is_inseparable]


def _definitions(explanations: Sequence[Explanation]) -> Iterator[Note]:
    """Notes that say what the product and the intervals are."""
    first = explanations[0]
    yield Note(
        "Product",
        "exact; the printed numbers are traced back one step at a time. The largest factor is "
        "first, and factors of exactly 1 are left out. The product holds by construction and "
        "proves no cause. docs/explain.md has the formulas.",
    )
    scopes = dict.fromkeys(explanation.scope.text for explanation in explanations)
    untested = "" if first.scope.is_estimated else " Nothing is claimed about times."
    yield Note(
        "Intervals",
        f"95 %; intervals of times cover {' or '.join(scopes)}. Colours show tests that are "
        f"corrected for their number.{untested}",
    )
