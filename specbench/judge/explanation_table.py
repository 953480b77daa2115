"""Build the tables and notes of explanations, which every format shows.

A is the subject and B the reference. The ratio A / B is explained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specbench.analysis.factors import (
    COST,
    FACTORS,
    MAT,
    PER_TOKEN,
    PREFILL,
    PROMPTS,
    Factor,
)
from specbench.judge.causes import Setting
from specbench.judge.explained_bins import bin_notes, bin_rows
from specbench.judge.explanation import Explanation
from specbench.judge.explanation_sentences import number_text, percent_text, sentence
from specbench.judge.imported_sides import file_notes, publisher_notes, steps_by_counters
from specbench.log.machine import UNKNOWN
from specbench.log.run import loads_of
from specbench.report import facts, formats
from specbench.report.table import Cell, Row, Table, Tone, group_table
from specbench.report.texts import Note


class ExplainedBlock(NamedTuple):
    """The explanation of one method."""

    heading: str
    sentence: str
    table: Table
    notes: tuple[Note, ...]
    """Notes on the settings that differ only for this method, and on factors that cannot be
    separated.
    """


class ExplainedTables(NamedTuple):
    """The content of explanations in any format."""

    legend: tuple[Note, ...]
    """A note for each run: its letter, and the run in words."""
    blocks: tuple[ExplainedBlock, ...]
    notes: tuple[Note, ...]
    """Notes on the settings that differ for all methods, on different work, and on the columns."""


def build_explanation(explanations: Sequence[Explanation]) -> ExplainedTables:
    """Build the tables of explanations, which are all about the same pair of runs or the same run.

    There is a block per explanation. The notes below all blocks are about the settings that differ
    for all methods, different work, the runs' files, and the columns.
    """
    any_explanation = explanations[0]  # all explanations share the facts about the runs
    # settings that differ in all explanations; empty if there is only one
    common_settings: list[Setting] = []
    if len(explanations) > 1:
        in_all = set.intersection(*({*explanation.settings} for explanation in explanations))
        common_settings = [setting for setting in any_explanation.settings if setting in in_all]
    # names of factors that are not 1 for some method
    moved = {name for explanation in explanations for name in explanation.moved}
    notes = [*_cause_notes(common_settings, [name for name in FACTORS if name in moved])]
    if any_explanation.work:
        differences = "; ".join(any_explanation.work)
        refusal = f"`compare` refuses these runs without --explain: {differences}"
        notes.append(Note("Different work", refusal))
    notes += [*file_notes(any_explanation), *bin_notes(explanations), *_definitions(explanations)]
    return ExplainedTables(
        legend=tuple(_legend(any_explanation)),
        blocks=tuple(_block(explanation, common_settings) for explanation in explanations),
        notes=tuple(notes),
    )


def _legend(explanation: Explanation) -> Iterator[Note]:
    """A note for each run: its letter, then its name, model and machine."""
    for letter, side in zip("AB", explanation.sides, strict=False):
        run = side.header
        yield Note(letter, f"{run.id}: {facts.model_phrase(run)}; {run.device_phrase}")


def _block(explanation: Explanation, common_settings: Sequence[Setting]) -> ExplainedBlock:
    """The block of one explanation. Its notes leave out the settings common to all methods."""
    specific = [setting for setting in explanation.settings if setting not in common_settings]
    notes = _cause_notes(specific, explanation.moved)
    return ExplainedBlock(
        heading(explanation),
        sentence(explanation),
        _table(explanation),
        (*publisher_notes(explanation), *notes, *_doubts(explanation)),
    )


def heading(explanation: Explanation) -> str:
    """The method, the temperature and the load. Those of both sides are named if they differ."""
    sides = explanation.sides
    temperatures = [side.temperature_text for side in sides]
    unknown = "Unknown temperature"
    # texts of both sides: the method, the temperature, and the load of servers
    texts_of_sides = (
        [side.label for side in sides],
        [unknown if level == UNKNOWN else f"Temperature={level}" for level in temperatures],
        [side.key.load.text for side in sides if loads_of(explanation.subject.header.spec.values)],
    )
    texts = (" against ".join(dict.fromkeys(side_texts)) for side_texts in texts_of_sides)
    return ", ".join(filter(None, texts))


def _table(explanation: Explanation) -> Table:
    """The table of an explanation, which splits the speedup of a method, or the ratio A / B of two
    methods' numbers, into factors. There is a row for each factor that is not 1, in the order of
    the explanation.

    Below the cost are rows for the method's step and for vanilla's. Below MAT are rows for bins: a
    bin has the steps within a range of positions in the answer, of context lengths or of turns.
    Last come the phases of a step, and the product of all factors. If times are not evidence of
    speed (`no_times`), MAT is the only factor, and there is no product.
    """
    is_pair = explanation.reference is not None
    headings = ("A", "B", "A / B", "95 %") if is_pair else ("value", "factor", "95 %")
    rows = []
    for factor in explanation.factors:
        if factor.name not in explanation.moved:  # it is 1, except for rounding
            continue
        rows.append(_row(factor.name, factor, explanation))
        if factor.name == COST:
            # Seconds are in the cells of the rows, and other units in their labels.
            unit = "" if explanation.step_unit == "s" else f", in {explanation.step_unit}"
            for step in explanation.step_lines:  # the method's, and vanilla's
                rows.append(_row(f"· {step.name}{unit}", step, explanation))
        if factor.name == MAT:
            rows += bin_rows(explanation)
    rows += _phase_rows(explanation, len(headings))
    product = explanation.product
    if not explanation.no_times:
        numbers = (
            [product.subject] if product.reference is None else [product.subject, product.reference]
        )
        texts = [*map(number_text, numbers), f"x{product.ratio:.3f}", ""]  # no interval
        rows.append(Row(method="", label="product", cells=tuple(map(Cell, texts))))
    return group_table(headings, rows, heading="Factor")


def _row(label: str, factor: Factor, explanation: Explanation) -> Row:
    """The row of a factor: the number of each side, the effect on the ratio, and the interval of
    the effect.

    The label is the factor's name, except in the rows of the two steps below the cost of a step,
    such as "· method's step". These rows are in the explanation's `step_unit` and have no colour.
    """
    is_step_below_cost = factor.name != label
    # If a side lacks vanilla's answers, or all methods are vanilla, `has_baseline` is False on both
    # sides. Then costs are in seconds instead of steps of vanilla.
    is_in_seconds = factor.name in (COST, PER_TOKEN) and not explanation.subject.pairs.has_baseline
    is_in_seconds |= is_step_below_cost and explanation.step_unit == "s"
    numbers = [factor.subject] if factor.reference is None else [factor.subject, factor.reference]
    if is_in_seconds:
        number_texts = [f"{number_text(1e3 * seconds)} ms" for seconds in numbers]
    else:
        number_texts = [f"{number:#.4g}" for number in numbers]
    interval = factor.effect.interval
    interval_text = f"{interval.low:.3f}–{interval.high:.3f}" if interval else formats.NONE
    effect_text = f"x{factor.effect.value:.3f}"
    if is_step_below_cost and explanation.reference is None:  # a single run has only seconds
        effect_text = interval_text = ""
    tone: Tone = "unsure"
    if explanation.is_claimed(factor.name):
        tone = "good" if factor.effect.value > 1 else "bad"
    effect = Cell(effect_text, "" if is_step_below_cost else tone)
    cells = (*map(Cell, number_texts), effect, Cell(interval_text))
    return Row(method="", label=label, cells=cells)


def _phase_rows(explanation: Explanation, num_columns: int) -> Iterator[Row]:
    """The rows of a step's phases, such as drafting, with their shares of the step on each side.

    The shares add up to 100 %, so phases are not factors, and the other columns are empty. If no
    side timed its phases, there are no rows.
    """
    sides = explanation.sides
    for phase in next((side.phases for side in sides if side.phases), ()):
        texts = [
            f"{100 * side.phases[phase]:.1f} %" if side.phases else formats.NONE for side in sides
        ]
        texts += [""] * (num_columns - len(texts))
        yield Row(method="", label=f"· {phase}", cells=tuple(map(Cell, texts)))


def _cause_notes(settings: Sequence[Setting], names: Sequence[str]) -> Iterator[Note]:
    """A note for each of the named factors, with all settings that can change it. A factor that no
    setting can change has no note.
    """
    for name in names:
        if texts := [setting.text for setting in settings if name in setting.factors]:
            yield Note(f"Can change {name}", "; ".join(texts))


def _doubts(explanation: Explanation) -> Iterator[Note]:
    """Notes on factors without a cause, on factors that cannot be separated, and on phases."""
    for factor in explanation.factors:
        if explanation.is_without_cause(factor.name):
            doubt = (
                f"{factor.name}: {percent_text(factor)}, but no setting that can change it differs"
            )
            yield Note("Without a cause", doubt, is_warning=True)
    yield from (Note("Not separable", phrase) for phrase in not_separable(explanation))
    if any(side.phases for side in explanation.sides):
        yield Note("Phases", "shares of a step; timing the phases slows the step down")


def not_separable(explanation: Explanation) -> list[str]:
    """Phrases that name factors and settings whose effects cannot be separated, with the reasons.

    Settings that differ cannot be separated if they can change the same claimed factor.
    """
    product = explanation.product
    names = [factor.name for factor in product.factors]
    # MAT of each side whose server does not report the steps of each answer
    by_counters = "".join(map(steps_by_counters, explanation.sides))
    # phrase -> True if it holds; `num_shared` is the number of turns that both sides have
    phrases = {
        f"{PROMPTS}: the sides have no prompt in common": not product.num_shared,
        f"{PREFILL}: one side has only total times, so {COST} includes it": not (
            product.has_prefill or explanation.no_times
        ),
        f"{MAT}{by_counters} and {COST}: the steps of one side are unknown": PER_TOKEN in names,
    }
    for name in names:
        phrase = f"the settings that can change {name}: vary one at a time"
        phrases[phrase] = explanation.is_claimed(name) and len(explanation.causes(name)) > 1
    return [phrase for phrase, holds in phrases.items() if holds]


def _definitions(explanations: Sequence[Explanation]) -> Iterator[Note]:
    """Notes that say what the product and the intervals are."""
    yield Note(
        "Product",
        "exact: the factors multiply to the printed number. The largest factor is first, and "
        "factors of exactly 1 are left out. The product holds by construction and proves no "
        "cause. docs/explain.md has the formulas.",
    )
    scopes = dict.fromkeys(explanation.scope.text for explanation in explanations)
    # Times are not tested if there are too few passes or runs.
    untested = "" if explanations[0].scope.is_estimated else " Nothing is claimed about times."
    yield Note(
        "Intervals",
        f"95 %; intervals of times cover {'; or '.join(scopes)}. Colours show test results, "
        f"corrected for the number of tests.{untested}",
    )
