"""Explain a speedup, or the ratio of two speedups, by factors and their possible causes.

`analysis.factors` has the arithmetic. Here runs become sides, differences of times are tested,
and each factor gets the settings that differ and can change it.
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
"""Fields that must be equal for two steps to be compared in seconds. The load must be equal too."""
READINGS = "readings of the weights"
"""The unit of steps on different machines. It is the time in which a machine reads the model's
weights.
"""
_ROUNDING = 1e-12
"""Factors that differ from 1 by no more than this rounding error count as 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """A method's number as a product of factors, and of the reference's number if there is one."""

    subject: ExplainedSide
    reference: ExplainedSide | None
    """The side that the subject is compared with; None if the subject is explained alone."""
    product: Product
    step_unit: str = "s"
    """Unit of the two lines under cost: "s" or `READINGS`. It is empty if the steps of the sides
    cannot be compared in either unit.
    """
    settings: Sequence[Setting] = ()
    """Settings that differ and can change a factor."""
    bins: Sequence[BinRatio] = ()
    """The ratio of MAT by the step's position, context and turn; empty if steps are not listed."""
    work: Sequence[str] = ()
    """Differences for which `compare` would refuse the two runs."""
    p_values: dict[str, float | None] = field(default_factory=dict)
    """P-values of "the factor is 1", corrected for all factors. An untested factor has None or is
    absent.
    """

    @property
    def sides(self) -> tuple[ExplainedSide, ...]:
        """The subject, and the reference if there is one."""
        return (self.subject, self.reference) if self.reference else (self.subject,)

    @property
    def no_times(self) -> str:
        """The reason why times are not evidence; empty if they may be used."""
        return next(filter(None, (side.no_times for side in self.sides)), "")

    @property
    def is_imported(self) -> bool:
        """True if a side is from another tool's files, which do not name all settings."""
        return any(side.header.imported for side in self.sides)

    @property
    def num_equal(self) -> int:
        """The number of prompts and turns that both sides have, if the answers to all of them have
        equal tokens and steps; else 0. Unknown steps are never equal.
        """
        if self.reference is None:
            return 0
        shared = self.subject.turns & self.reference.turns
        counts = [{count for count in side.counts if count.turn in shared} for side in self.sides]
        return len(shared) if counts[0] == counts[1] else 0

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The factors that count, the largest first. If times are not evidence, only MAT counts."""
        names = [MAT] if self.no_times else FACTORS
        factors = [factor for factor in self.product.factors if factor.name in names]
        return tuple(sorted(factors, key=lambda factor: -abs(np.log(factor.effect.value))))

    @property
    def step_lines(self) -> tuple[Factor, ...]:
        """The lines under cost: the method's step and the baseline's. Empty without a baseline."""
        has_lines = self.step_unit and self.subject.pairs.has_baseline and not self.no_times
        return self.product.steps if has_lines else ()

    @property
    def moved(self) -> list[str]:
        """The names of the factors that differ from 1 by more than rounding, in their order."""
        factors = self.product.factors
        return [factor.name for factor in factors if abs(factor.effect.value - 1) > _ROUNDING]

    def causes(self, name: str) -> list[str]:
        """The settings that differ and can change a factor, in words."""
        return [setting.text for setting in self.settings if name in setting.factors]

    def is_claimed(self, name: str) -> bool:
        """True if the factor differs significantly from 1."""
        return is_claimed(self.p_values.get(name))

    def is_without_cause(self, name: str) -> bool:
        """True if a factor differs from 1 although no setting that can change it differs.

        Averaging and prefill can change because other factors do: averages weigh changes by task,
        and a shorter decode makes the prefill's share larger. Files of other tools do not
        name all settings, so the result is False for sides from such files.
        """
        if self.is_imported or not self.is_claimed(name) or self.causes(name) or name == AVERAGING:
            return False
        decoding = (MAT, COST, PER_TOKEN)
        has_decoding_moved = any(
            self.is_claimed(factor) or self.causes(factor) for factor in decoding
        )
        return name != PREFILL or not has_decoding_moved

    @property
    def scope(self) -> Scope:
        """The passes or runs that intervals of times cover besides prompts, with their number."""
        # For each side, the log of the first factor that has times, per pass or run [units]. It is
        # NaN if a pass or run lacks most requests.
        logs_of_sides = next(
            (factor.effect.units for factor in self.product.factors if factor.effect.units), ()
        )
        number = min((int(np.isfinite(logs).sum()) for logs in logs_of_sides), default=1)
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

    There is an explanation per method, temperature and load, with the tests of its factors.

    Args:
        subject: the run whose numbers are explained.
        reference: the run that the subject is compared with, or None to explain the subject alone.
        methods: a method per run, instead of the common methods. A single run uses the first.
        loads: a load per run, instead of the loads that both have. A single run uses the first.
        bootstrap: the draws of the intervals; None for the default.

    Raises:
        UserError: nothing can be explained, or a method or load is unknown.
    """
    runs = [RunTables(run) for run in (subject, reference) if run]
    explanations = []
    for load_of_runs in pair_loads([tables.run for tables in runs], loads):  # a load per run
        runs_at_load = [
            CountedRun.of(tables.at(load)) for tables, load in zip(runs, load_of_runs, strict=True)
        ]
        for key_of_runs in pair_keys(runs_at_load, load_of_runs, methods):  # a key per run
            if explanation := _explanation(runs_at_load, key_of_runs, bootstrap):
                explanations.append(explanation)
    if not explanations:
        names = " and ".join(tables.run.header.id for tables in runs)
        raise UserError(
            f"{names}: no method has finished answers at the same temperature.",
            "`specbench show RUN` lists what a run has. --cross METHOD METHOD pairs two methods.",
        )
    return _with_p_values(explanations)


def _explanation(
    runs: Sequence[CountedRun], keys: Sequence[SideKey], bootstrap: Bootstrap | None
) -> Explanation | None:
    """Explain one method in one or two runs, without tests of the factors. Returns None if a run
    has no answers to explain.

    The explained number is a speedup. It is tokens/s if a run lacks vanilla's answers, or if the
    method of all runs is vanilla. Under load, it is a throughput or the ratio to vanilla's
    throughput, if the seconds of the servers' blocks of requests are known.

    Args:
        runs: the subject, and the reference if there is one, each at one load.
        keys: the method, the temperature and the load of each run.
        bootstrap: the draws of the intervals; None for the default.
    """
    is_over_baseline = all(map(CountedRun.has_baseline, runs, keys)) and not all(
        key.method == BASELINE for key in keys
    )
    is_loaded = any(key.load not in (NO_LOAD, ONE_AT_A_TIME) for key in keys)  # NO_LOAD: engine
    # The answers of an imported run may overlap if its files do not name the load.
    is_loaded |= any(
        run.header.imported and not run.header.imported.tells_load
        for run in (counted.tabled.run for counted in runs)
    )

    def make_sides(*, is_throughput: bool) -> list[ExplainedSide]:
        """Make the side of each run, with times of blocks (`is_throughput`) or of requests."""
        return [
            make_side(run, key, is_over_baseline=is_over_baseline, is_throughput=is_throughput)
            for run, key in zip(runs, keys, strict=True)
        ]

    sides = make_sides(is_throughput=is_loaded)
    if not all(side.pairs.are_blocks_known for side in sides):
        sides = make_sides(is_throughput=False)
    if not all(side.pairs.requests for side in sides):
        return None
    pairs = [side.pairs for side in sides]
    if (step_unit := _step_unit(sides)) == READINGS:  # all sides have a `reading_s`
        pairs = [replace(side.pairs, step_unit_s=side.reading_s or 1.0) for side in sides]
    subject, reference = sides[0], sides[1] if len(sides) > 1 else None
    if reference is None:
        return Explanation(subject, None, explain(pairs[0], bootstrap=bootstrap))
    product = explain(
        *pairs,
        is_one_run=subject.run.records == reference.run.records,
        bootstrap=bootstrap,
    )
    shared_turns = subject.turns & reference.turns
    draws = Draws(bootstrap or Bootstrap(), "step bins")
    return Explanation(
        subject,
        reference,
        product,
        step_unit=step_unit,
        settings=settings_that_differ(subject, reference, product),
        bins=compare_steps(subject.steps_of(shared_turns), reference.steps_of(shared_turns), draws),
        # each once
        work=[*dict.fromkeys(map(words, COMPARE.conflicts(subject.header, reference.header)))],
    )


def _step_unit(sides: Sequence[ExplainedSide]) -> str:
    """The unit in which the steps of the sides are compared.

    It is "s" for a single side, and for two sides with the same known machine, model and load.
    Otherwise it is `READINGS`, or empty if the seconds of a reading are unknown on a side.
    """
    subject, reference = sides[0], sides[-1]  # the same side if there is only one
    is_machine_unknown = len(sides) > 1 and any(side.header.imported for side in sides)
    is_same_clock = (
        not is_machine_unknown
        and subject.key.load == reference.key.load
        and not any(
            difference.is_any_of(_SAME_CLOCK)
            for difference in differences(subject.header, reference.header)
        )
    )
    if is_same_clock:
        return "s"
    return READINGS if all(side.reading_s for side in sides) else ""


def _with_p_values(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Add the p-values of factors and bins to explanations.

    P-values are of "the factor is 1" and of "the ratio of MAT is 1". They are corrected (Holm) for
    the number of all factors, and for the number of all bins. A factor is not tested if it is 1 up
    to rounding, if it comes from times that are not evidence, or if a run is explained alone.
    """
    no_change = without_spread(1.0)
    # (index of the explanation, name of the factor) -> corrected p-value, or None if the factor
    # cannot be tested
    p_values_of_factors = holm(
        {
            (i, factor.name): differs(factor.effect, no_change, factor.effect.machine)
            for i, explanation in enumerate(explanations)
            if explanation.reference
            for factor in explanation.factors
            if factor.name in explanation.moved
        }
    )
    # (index of the explanation, index of the bin) -> corrected p-value or None
    p_values_of_bins = holm(
        {
            (i, bin_index): differs(step_bin.ratio, no_change, EXACT)
            for i, explanation in enumerate(explanations)
            for bin_index, step_bin in enumerate(explanation.bins)
        }
    )
    return [
        replace(
            explanation,
            p_values={
                name: p_value
                for (index, name), p_value in p_values_of_factors.items()
                if index == i
            },
            bins=[
                replace(step_bin, p_value=p_values_of_bins[i, bin_index])
                for bin_index, step_bin in enumerate(explanation.bins)
            ],
        )
        for i, explanation in enumerate(explanations)
    ]
