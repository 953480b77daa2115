"""The explanation of a speedup, or of a ratio of two: the factors and their possible causes.

`analysis.factors` has the arithmetic. Here runs become sides, differences of times are tested,
and each factor gets the settings that differ and can move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specbench.analysis.bin_ratios import BinRatio, compare_steps
from specbench.analysis.factors import (
    AVERAGING,
    COST,
    FACTORS,
    MAT,
    PER_TOKEN,
    PREFILL,
    Factor,
    Product,
    explain,
)
from specbench.analysis.ranking import is_claimed
from specbench.analysis.records import BASELINE
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import without_spread
from specbench.analysis.stats.scope import Scope
from specbench.analysis.stats.significance import differs, holm
from specbench.analysis.stats.variance import EXACT
from specbench.analysis.tables import RunTables
from specbench.errors import UserError
from specbench.judge.causes import Setting, settings_that_differ, words
from specbench.judge.explained_sides import CountedRun, ExplainedSide, SideKey, make_side
from specbench.judge.side_pairs import pair_keys, pair_loads
from specbench.log.differences import differences
from specbench.log.policies import COMPARE
from specbench.log.run import NO_LOAD, ONE_AT_A_TIME, Load, Run

_SAME_CLOCK = (
    "hardware",
    "gpu.*",
    "num_threads",
    "model.name",
    "model.dtype",
    "model.quantization",
    "model.is_stand_in",
    "model.files.*",
)
"""Fields that must be equal, besides the load, for two steps to be compared in seconds."""
READINGS = "readings of the weights"
"""The unit of steps on different machines: the time in which each reads the model's weights."""
_ROUNDING = 1e-12
"""Factors that differ from 1 by no more than this rounding error count as 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """A method's number as a product: factors times the reference's number, or factors alone."""

    subject: ExplainedSide
    reference: ExplainedSide | None
    """The side that the subject is compared with; None if the subject is explained alone."""
    product: Product
    step_unit: str = "s"
    """Unit of the two lines under cost: seconds, or the time in which a machine reads the weights.
    Empty if neither is known for all sides.
    """
    settings: Sequence[Setting] = ()
    """Settings that differ and can move a factor."""
    bins: Sequence[BinRatio] = ()
    """The ratio of MAT by the step's position, context and turn; empty if steps are not listed."""
    work: Sequence[str] = ()
    """Differences for which `compare` would refuse the two runs."""
    p_values: dict[str, float | None] = field(default_factory=dict)
    """P-values of "the factor is 1", corrected for all factors; None: not tested."""

    @property
    def sides(self) -> tuple[ExplainedSide, ...]:
        """The subject, and the reference if there is one."""
        return (self.subject, self.reference) if self.reference else (self.subject,)

    @property
    def no_times(self) -> str:
        """The reason why times are no evidence; empty if they are."""
        return next(filter(None, (side.no_times for side in self.sides)), "")

    @property
    def is_imported(self) -> bool:
        """True if a side is from another tool's files, which do not name all settings."""
        return any(side.header.imported for side in self.sides)

    @property
    def num_equal(self) -> int:
        """The prompts and turns that both sides have, if all have equal tokens and steps; else 0.

        Unknown steps are never equal.
        """
        if self.reference is None:
            return 0
        shared = self.subject.turns & self.reference.turns
        counted = [{count for count in side.counts if count.turn in shared} for side in self.sides]
        return len(shared) if counted[0] == counted[1] else 0

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors that count, the largest first; without times if these are no evidence."""
        names = [MAT] if self.no_times else FACTORS
        factors = [factor for factor in self.product.factors if factor.name in names]
        return tuple(sorted(factors, key=lambda factor: -abs(np.log(factor.effect.value))))

    @property
    def step_lines(self) -> tuple[Factor, ...]:
        """The lines under cost: the method's step and the baseline's, if there is one."""
        has_lines = self.step_unit and self.subject.pairs.has_baseline and not self.no_times
        return self.product.steps if has_lines else ()

    @property
    def moved(self) -> list[str]:
        """The factors that differ from 1 by more than rounding, in their order."""
        factors = self.product.factors
        return [factor.name for factor in factors if abs(factor.effect.value - 1) > _ROUNDING]

    def causes(self, name: str) -> list[str]:
        """The settings that differ and can move a factor."""
        return [setting.text for setting in self.settings if name in setting.factors]

    def is_claimed(self, name: str) -> bool:
        """True if the factor differs significantly from 1."""
        return is_claimed(self.p_values.get(name))

    def is_without_cause(self, name: str) -> bool:
        """True if a factor differs from 1 although no setting that can move it differs.

        Averaging and prefill follow from other factors: the same average weighs their changes by
        task, and a shorter decode makes the prefill's share larger. Files of other tools do not
        name all settings, so nothing is said about sides from such files.
        """
        if self.is_imported or not self.is_claimed(name) or self.causes(name) or name == AVERAGING:
            return False
        decoding = (MAT, COST, PER_TOKEN)
        is_followed = any(self.is_claimed(other) or self.causes(other) for other in decoding)
        return name != PREFILL or not is_followed

    @property
    def scope(self) -> Scope:
        """Passes or runs that intervals of times cover besides prompts."""
        units = next(
            (factor.effect.units for factor in self.product.factors if factor.effect.units), ()
        )
        number = min((int(np.isfinite(logs).sum()) for logs in units), default=1)
        is_pool = any(side.run.run_of_repeat for side in self.sides)
        return Scope("runs" if is_pool else "passes", max(number, 1))


def explain_runs(
    subject: Run,
    reference: Run | None = None,
    methods: tuple[str, str] | None = None,
    loads: tuple[Load, Load] | None = None,
    bootstrap: Bootstrap | None = None,
) -> list[Explanation]:
    """Explain the ratio subject / reference of each common method, or each speedup of one run.

    Args:
        subject: the run whose numbers are explained.
        reference: the run that they are compared with; None: they are explained alone.
        methods: a method of each run, instead of the common ones.
        loads: a load of each run, instead of those that both have.
        bootstrap: the draws of the intervals; None for the default.

    Raises:
        UserError: nothing can be explained, or a method or load is unknown.
    """
    tables = [RunTables(run) for run in (subject, reference) if run]
    explanations = []
    for load_pair in pair_loads([table.run for table in tables], loads):
        sides = [
            CountedRun.of(table.at(load)) for table, load in zip(tables, load_pair, strict=True)
        ]
        for keys in pair_keys(sides, load_pair, methods):
            if explanation := _explanation(sides, keys, bootstrap):
                explanations.append(explanation)
    if not explanations:
        names = " and ".join(table.run.header.id for table in tables)
        raise UserError(
            f"{names}: no method has finished answers to explain.",
            "`specbench show RUN` lists what a run has. --cross METHOD METHOD pairs two methods.",
        )
    return _with_p_values(explanations)


def _explanation(
    runs: Sequence[CountedRun], keys: Sequence[SideKey], bootstrap: Bootstrap | None
) -> Explanation | None:
    """The explanation of a method of one or two runs, without tests; None without answers.

    `keys` has the method, temperature and load of each run. The explained number is a throughput
    under load if the blocks of servers are known, else a speedup, or tokens/s without a baseline.
    """
    is_over_baseline = all(map(CountedRun.has_baseline, runs, keys)) and not all(
        key.method == BASELINE for key in keys
    )
    is_loaded = any(key.load not in (NO_LOAD, ONE_AT_A_TIME) for key in keys)
    # answers may overlap if their files do not name the load
    is_loaded |= any(
        run.header.imported and not run.header.imported.tells_load
        for run in (counted.tabled.run for counted in runs)
    )

    def make_sides(*, is_throughput: bool) -> list[ExplainedSide]:
        return [
            make_side(run, key, is_over_baseline=is_over_baseline, is_throughput=is_throughput)
            for run, key in zip(runs, keys, strict=True)
        ]

    sides = make_sides(is_throughput=is_loaded)
    if not all(side.pairs.are_blocks_known for side in sides):
        sides = make_sides(is_throughput=False)
    if not all(side.pairs.requests for side in sides):
        return None
    step_unit = _step_unit(sides)  # "s", `READINGS`, or empty
    pairs = [side.pairs for side in sides]
    if step_unit == READINGS:
        pairs = [replace(side.pairs, step_unit_s=side.reading_s or 1.0) for side in sides]
    subject, reference = sides[0], sides[1] if len(sides) > 1 else None
    if reference is None:
        return Explanation(subject, None, explain(pairs[0], bootstrap=bootstrap))
    product = explain(
        *pairs,
        is_one_run=subject.run.records == reference.run.records,
        bootstrap=bootstrap,
    )
    conflicts = COMPARE.conflicts(subject.header, reference.header)
    shared = subject.turns & reference.turns
    draws = Draws(bootstrap or Bootstrap(), "step bins")
    return Explanation(
        subject,
        reference,
        product,
        step_unit=step_unit,
        settings=settings_that_differ(subject, reference, product),
        bins=compare_steps(subject.steps_of(shared), reference.steps_of(shared), draws),
        work=[*dict.fromkeys(map(words, conflicts))],
    )


def _step_unit(sides: Sequence[ExplainedSide]) -> str:
    """Seconds on one machine, otherwise the time to read the weights if it is known for all."""
    first, last = sides[0], sides[-1]
    is_unknown = len(sides) > 1 and any(side.header.imported for side in sides)
    is_same_clock = (
        not is_unknown
        and first.key.load == last.key.load
        and not any(
            difference.is_any_of(_SAME_CLOCK)
            for difference in differences(first.header, last.header)
        )
    )
    if is_same_clock:
        return "s"
    return READINGS if all(side.reading_s for side in sides) else ""


def _with_p_values(explanations: Sequence[Explanation]) -> list[Explanation]:
    """The explanations with the tests of their factors and bins, corrected for their number (Holm).

    A factor that is exactly 1 is not tested. Bins are a family of their own.
    """
    no_change = without_spread(1.0)
    p_values = {
        (number, factor.name): differs(factor.effect, no_change, factor.effect.machine)
        for number, explanation in enumerate(explanations)
        if explanation.reference
        for factor in explanation.factors
        if factor.name in explanation.moved
    }
    p_values_of_bins = holm(
        {
            (number, index): differs(step_bin.ratio, no_change, EXACT)
            for number, explanation in enumerate(explanations)
            for index, step_bin in enumerate(explanation.bins)
        }
    )
    # of each explanation, by factor
    corrected: list[dict[str, float | None]] = [{} for _ in explanations]
    for (number, name), p_value in holm(p_values).items():
        corrected[number][name] = p_value
    return [
        replace(
            explanation,
            p_values=p_value_by_factor,
            bins=[
                replace(step_bin, p_value=p_values_of_bins[number, index])
                for index, step_bin in enumerate(explanation.bins)
            ],
        )
        for number, (explanation, p_value_by_factor) in enumerate(
            zip(explanations, corrected, strict=True)
        )
    ]
