"""Find methods that remember or know answers, from the number of steps that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from specbench.analysis.answer_order import is_order_telling
from specbench.analysis.ratios import column_ratio
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.estimates import without_spread
from specbench.analysis.stats.significance import GATE_ALPHA, holm, slower
from specbench.analysis.stats.variance import EXACT
from specbench.analysis.unclocked import Subject

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_STEPS = 0.95
"""The smallest honest ratio of the steps per token in later passes to those in the first pass."""


class Compared(NamedTuple):
    """The ratios of subjects, and the references to compare them with; None if all are 1."""

    ratios: Mapping[Subject, Ratio]
    references: Mapping[Subject, Ratio] | None = None


def claimed(compared: Compared, allowed: float = 1 / LEAST_STEPS - 1) -> dict[Subject, float]:
    """Find the quotients ratio / reference that are significantly below 1, by more than `allowed`.

    That means below 1 / (1 + allowed), which is LEAST_STEPS by default. The keys are subjects (a
    method and a temperature); other subjects are left out. Without references, each reference is 1.
    The test assumes that the machine adds no variance, since `allowed` covers its noise.
    """
    # Ratios and references come from different completions, so they are resampled independently:
    # on random streams with different names.
    draws = Draws(Bootstrap(), "first")
    reference_draws = Draws(Bootstrap(), "second")
    quotients: dict[Subject, float] = {}
    # p-values of "the quotient is at least 1 / (1 + allowed)"; None if too few samples for a test
    p_values: dict[Subject, float | None] = {}
    for subject, ratio in compared.ratios.items():
        estimate = draws.estimate(ratio)
        reference = without_spread(1.0)  # 1 in each resample
        if compared.references:
            reference = reference_draws.estimate(compared.references[subject])
        quotients[subject] = estimate.value / reference.value
        p_values[subject] = slower(estimate, reference, allowed, EXACT)
    return {
        subject: quotients[subject]
        for subject, p_value in holm(p_values).items()  # corrected for the number of tests
        if p_value is not None and p_value <= GATE_ALPHA
    }


def subjects(frame: DataFrame) -> Iterator[tuple[Subject, DataFrame]]:
    """Yield each method and temperature with its rows."""
    groups = frame.groupby(["method", "temperature"], observed=True, sort=False)
    for (method, temperature), rows in groups:
        yield (str(method), float(temperature)), rows


def later_passes(used: DataFrame) -> Compared:
    """Divide each method's steps per token in later passes by its steps per token in the first.

    Only requests that the method answered in the first pass and in a later one count. The ratios
    have subjects (method and temperature) as keys. A subject without such a request is left out.
    `used` has a row per completion with its pass (`repeat`, from 0) and the number of its
    `request`, which is the same in all passes.
    """
    ratios = {}
    for subject, rows in subjects(used):
        is_first = rows["repeat"] == 0
        # Numbers of the requests with completions in the first pass and in a later one.
        requests_in_both = set(rows["request"][is_first]) & set(rows["request"][~is_first])
        if not requests_in_both:
            continue
        counts_by_pass = {
            "num_emitted first": rows["num_emitted"].where(is_first, 0),
            "num_emitted later": rows["num_emitted"].where(~is_first, 0),
            "num_steps first": rows["num_steps"].where(is_first, 0),
            "num_steps later": rows["num_steps"].where(~is_first, 0),
        }
        rows_with_counts = rows.assign(**counts_by_pass)
        # (later steps * first tokens) / (later tokens * first steps)
        ratios[subject] = column_ratio(
            rows_with_counts[rows["request"].isin(requests_in_both)],
            ("num_steps later", "num_emitted first"),
            ("num_emitted later", "num_steps first"),
        )
    return Compared(ratios)


def _by_order(first_pass: DataFrame) -> Compared:
    """Compare a method's steps per token on requests that vanilla answered first, and on others.

    For each subject (method and temperature), `ratios` is for requests that vanilla answered first,
    and `references` is for the others. A subject without requests of both kinds is left out.
    `first_pass` has a row per completion; its index numbers the rows in the order in which they
    ran. `baseline_row` is the row of vanilla's answer to the same request, or -1.
    """
    after = {}  # subject -> steps per token if vanilla answered first
    before = {}  # subject -> steps per token if the method answered first
    for subject, rows in subjects(first_pass[first_pass["baseline_row"] >= 0]):
        is_after = rows["baseline_row"] < rows.index
        if is_after.any() and not is_after.all():
            after[subject] = column_ratio(rows[is_after], ["num_steps"], ["num_emitted"])
            before[subject] = column_ratio(rows[~is_after], ["num_steps"], ["num_emitted"])
    return Compared(after, before)


def known_answers(first_pass: DataFrame) -> dict[Subject, float]:
    """Find subjects with fewer steps after vanilla answered, by intervals and by random orders.

    The result has each such subject's quotient: steps per token on requests that vanilla answered
    first / on the others. `first_pass` is as in `_by_order`.
    """
    allowed = 1 / LEAST_STEPS - 1
    ratios = claimed(_by_order(first_pass), allowed)
    paired = first_pass[first_pass["baseline_row"] >= 0]
    return {
        subject: ratios[subject]
        for subject, rows in subjects(paired)
        if subject in ratios and is_order_telling(rows, allowed)
    }
