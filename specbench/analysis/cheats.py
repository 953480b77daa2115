"""Rules that find speed which drafting does not explain. Honest runs pass them.

They judge methods of the engine in this process, not those of servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.analysis.ratios import RowRatio, column_ratio
from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.repeated_steps import fewer_steps
from specbench.analysis.roofline import slow_steps
from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.step_counts import Compared, claimed, known_answers, later_passes, subjects
from specbench.analysis.unclocked import Subject, add_speedups, hidden_time, untimed_work
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FAST_STEP = "fast_step"
"""Key of the warning about steps of one method that are faster than vanilla's."""
SLOW_VANILLA = "slow_vanilla"
"""Key of the same warning about several methods: vanilla is then the likely cause."""

LEAST_STEP = 0.9
"""Smallest ratio of a step's time to vanilla's that noise and kernels explain."""
LEAST_STEP_MORE = 0.95
"""Smallest ratio that is explained if the method has more threads than vanilla: vanilla's step is
at most 5 % slower with vanilla's number of threads than with the fastest number.
"""
LEAST_PREFILL = 0.8
"""Smallest ratio of a prefill's time to vanilla's that noise and kernels explain."""
MOST_AFTER = 0.1
"""Vanilla's steps may take longer by this share after a method than after others."""
LEAST_PAIRS = 8
"""Fewest completions of vanilla after a method, and fewest after the others, for the rule that the
method slows vanilla.
"""
_GROUP = ["temperature", "task", "turn"]
"""Columns of vanilla's completions whose steps should take equally long."""


def find_cheats(table: RecordTable, header: RunHeader) -> tuple[RunWarning, ...]:
    """A warning for each rule that names methods: drafting does not explain their speed.

    Its numbers are ratios of steps or of times, by subject: a method and a temperature. The records
    of `table` stand in the order in which they ran; `header` describes their run.
    """
    spec = header.spec.values  # the run's options
    frame = table.frame
    # `spec.backend` is empty for the engine in this process; servers' methods are not judged.
    if spec.backend or header.servers or not len(frame):
        return ()
    is_used = frame["is_measured"] & ~frame["is_paused"] & (frame["num_steps"] > 0)
    # Completions of methods: those measured without a pause of the machine that have steps.
    used = frame[is_used & (frame["method"] != BASELINE)]
    # Rules that count steps need no times: a pause of the machine changes no step.
    has_steps = frame["is_measured"] & (frame["num_steps"] > 0)
    counted = frame[has_steps & (frame["method"] != BASELINE)]
    first_pass = counted[counted["repeat"] == 0]
    # Key of the warning -> the subjects that the rule names, with their ratios. `claimed` keeps
    # the ratios that are significantly below 1.
    ratios_by_rule: dict[str, dict[Subject, float]] = {
        "untimed_work": untimed_work(frame, header),  # seconds outside completions / decoding
        # Seconds by an outer clock / by the completions' own. A trace is read after the timed
        # steps, and would look like hidden work.
        "hidden_time": {} if spec.trace else hidden_time(table),
        # steps in later passes / the first
        "remembered_answers": claimed(later_passes(counted)) | fewer_steps(table.records, header),
        "known_answers": known_answers(first_pass),  # steps after vanilla / before it
    }
    has_phases = spec.phases or frame["draft_s"].notna().any()  # seconds by phase of steps
    if not has_phases:  # timing phases slows steps
        fast_ratios = _fast_steps(table, used, header)  # time of a step / vanilla's
        # Several fast methods have one likely cause: vanilla is slow.
        fast_methods = {method for method, _ in fast_ratios}
        ratios_by_rule[FAST_STEP if len(fast_methods) < 2 else SLOW_VANILLA] = fast_ratios
        # `_below` has the ratios to vanilla's time whose interval is below LEAST_PREFILL
        ratios_by_rule["fast_prefill"] = _below(table, used, LEAST_PREFILL, "prefill_s")
        # Methods after which vanilla is slower, with vanilla's speed after them / after others.
        slowed_speeds = claimed(_by_neighbour(frame, is_used), allowed=MOST_AFTER)
        # The warning is of times, the reciprocals.
        ratios_by_rule["slowed_vanilla"] = {
            subject: 1 / speed for subject, speed in slowed_speeds.items()
        }
    warnings = [_warning(key, ratios) for key, ratios in ratios_by_rule.items() if ratios]
    if ratios_by_rule["untimed_work"]:
        add_speedups(warnings[0].numbers["methods"], frame, header)  # its warning is the first
    warnings += slow_steps(header)
    # Fingerprints of the target's weights (or of a share of them): at load and at the run's end.
    fingerprints = header.weights_print
    if fingerprints and fingerprints.at_load != fingerprints.at_end:
        warnings.append(RunWarning("changed_weights", {"share": fingerprints.share}))
    return tuple(warnings)


def _warning(key: str, ratios: Mapping[Subject, float]) -> RunWarning:
    """The warning of a rule that names these methods."""
    methods: list[dict[str, Any]] = [
        {"method": method, "temperature": temperature, "ratio": ratio}
        for (method, temperature), ratio in ratios.items()
    ]
    return RunWarning(key, {"methods": methods})


def _fast_steps(table: RecordTable, used: DataFrame, header: RunHeader) -> dict[Subject, float]:
    """Ratios of step times to vanilla's that are too low. The limit is higher with more threads."""
    fast = _below(table, used, LEAST_STEP, "decode_s", "num_steps")
    threads = header.threads
    if threads:
        with_more = {method for method, num in threads.own.items() if num > threads.num}
        rows = used[used["method"].isin(with_more)]
        fast |= _below(table, rows, LEAST_STEP_MORE, "decode_s", "num_steps")
    return fast


def _below(
    table: RecordTable,
    used: DataFrame,
    least: float,
    time_column: str,
    count_column: str | None = None,
) -> dict[Subject, float]:
    """Ratios of a time (per count) to vanilla's, if the interval ends below `least`.

    Their median has to be below it too: bursts of other programs that hit vanilla are not enough.
    `used` holds completions of methods as rows of the table; their index is the row's number.
    `time_column` names seconds, `count_column` counts, such as steps; None: times alone. The
    ratios are by method and temperature.
    """
    ratios = {}
    for subject, paired_rows in subjects(used[used["baseline_row"] >= 0]):
        rows = paired_rows.index.to_numpy()
        baseline_rows = paired_rows["baseline_row"].to_numpy()
        # time / vanilla's time, or (time * vanilla's count) / (vanilla's time * count)
        top_columns = table.values(rows, time_column)
        bottom_columns = table.values(baseline_rows, time_column)
        if count_column:
            top_columns += table.values(baseline_rows, count_column)
            bottom_columns += table.values(rows, count_column)
        is_positive = np.logical_and.reduce(
            [column > 0 for column in (*top_columns, *bottom_columns)]
        )
        if not is_positive.any():
            continue
        # the factors of each row in which all of them are positive
        row_ratio = RowRatio(is_positive, tuple(top_columns), tuple(bottom_columns))
        if _median(row_ratio) < least:
            ratios[subject] = row_ratio.summed(table.groups(rows))
    draws = Draws(Bootstrap(), "first")  # the name of a random stream
    ratios_below = {}
    for subject, ratio in ratios.items():
        estimate = draws.estimate(ratio)
        if estimate.interval and estimate.interval.high < least:  # None: too few samples
            ratios_below[subject] = estimate.value
    return ratios_below


def _median(ratio: RowRatio) -> float:
    """The median over rows of prod(top) / prod(bottom)."""
    logs = _sum_of_logs(ratio, ratio.top) - _sum_of_logs(ratio, ratio.bottom)  # [rows]
    return float(np.exp(np.median(logs)))


def _sum_of_logs(ratio: RowRatio, factors: Sequence[FloatArray]) -> FloatArray | int:
    return sum(np.log(factor[ratio.where]) for factor in factors)


def _by_neighbour(frame: DataFrame, is_used: Series) -> Compared:
    """Vanilla's speed right after each method that slows it, and after all others.

    `frame` has one row per record, in the order in which they ran; `is_used` [rows] is true for
    those with steps, measured without a pause. Each speed is completions / the sum of their
    relative times, by method. Times of steps are relative to the median of their task, turn and
    temperature.
    """
    # The method of the record that ran before on the same worker [rows].
    method_before = frame.groupby("worker", observed=True, sort=False)["method"].shift()
    rows = frame[is_used & (frame["method"] == BASELINE) & (frame["decode_s"] > 0)]
    step_s = rows["decode_s"] / rows["num_steps"]
    group_columns = [rows[name] for name in _GROUP]
    median_s = step_s.groupby(group_columns, observed=True).transform("median")
    rows = rows.assign(
        completions=1.0,
        relative_time=step_s / median_s,
        before=method_before[rows.index],
    )
    # By method, all temperatures together: the 0.0 in a key stands for them.
    after = {}  # vanilla's speed right after the method
    otherwise = {}  # the same after all others
    for method in rows["before"].dropna().unique():
        is_after = rows["before"] == method
        # Both groups need LEAST_PAIRS of vanilla's completions.
        if method == BASELINE or min(is_after.sum(), (~is_after).sum()) < LEAST_PAIRS:
            continue
        median_after = rows["relative_time"][is_after].median()
        median_otherwise = rows["relative_time"][~is_after].median()
        if median_after > median_otherwise * (1 + MOST_AFTER):
            subject = str(method), 0.0
            after[subject] = column_ratio(rows[is_after], ["completions"], ["relative_time"])
            otherwise[subject] = column_ratio(rows[~is_after], ["completions"], ["relative_time"])
    return Compared(after, otherwise)
