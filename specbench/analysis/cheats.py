"""Find speed that drafting does not explain, by rules that honest runs pass.

The rules judge the methods of specbench's own engine, not those of servers.
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
"""Key of this warning if it names several methods. The likely cause is then a slow vanilla."""

LEAST_STEP = 0.9
"""The smallest ratio of a step's time to vanilla's that noise and other kernels can explain."""
LEAST_STEP_MORE = 0.95
"""LEAST_STEP for a method with more CPU threads than vanilla. Vanilla's step is at most 5 % slower
with its own number of threads than with the fastest.
"""
LEAST_PREFILL = 0.8
"""The smallest ratio of a prefill's time to vanilla's that noise and other kernels can explain."""
MOST_AFTER = 0.1
"""The share by which vanilla's steps may be slower right after a method than at other times."""
LEAST_PAIRS = 8
"""The rule about slowed steps of vanilla needs this many completions of vanilla right after the
method, and as many others.
"""
_GROUP = ["temperature", "task", "turn"]
"""The columns that identify vanilla's completions whose steps should take equally long."""


def find_cheats(table: RecordTable, header: RunHeader) -> tuple[RunWarning, ...]:
    """Warn about methods whose speed drafting does not explain, by several rules.

    Methods of servers get no warning. The records of `table` are in the order in which they ran;
    `header` describes their run. A subject is a method and a temperature. Rules that judge all
    temperatures together give the temperature as 0.0.
    """
    spec = header.spec.values  # the run's options
    frame = table.frame  # a row per completion
    # `spec.backend` is empty for the engine in this process.
    if spec.backend or header.servers or not len(frame):
        return ()
    has_steps = frame["is_measured"] & (frame["num_steps"] > 0)
    is_timed = has_steps & ~frame["is_paused"]  # no pause of the machine falsified the times
    # All completions but vanilla's: for rules about times, and for rules about numbers of steps.
    timed = frame[is_timed & (frame["method"] != BASELINE)]
    counted = frame[has_steps & (frame["method"] != BASELINE)]
    first_pass = counted[counted["repeat"] == 0]
    # Key of the rule's warning -> the subjects that the rule names, each with a ratio of steps or
    # of times. `claimed` keeps the ratios that are significantly below 1 / (1 + `allowed`), or
    # below 0.95 if `allowed` is not given.
    ratios_by_rule: dict[str, dict[Subject, float]] = {
        # seconds of work outside completions / seconds of decoding
        "untimed_work": untimed_work(frame, header),
        # Seconds of completions by an outer clock / by their own times. A trace of the draft trees
        # is recorded after the timed steps, and would look like hidden work.
        "hidden_time": {} if spec.trace else hidden_time(table),
        # Steps per token in later passes / in the first one. If a method's drafts depend only on
        # the prompt, steps of equal answers are compared without a test (`fewer_steps`).
        "remembered_answers": claimed(later_passes(counted)) | fewer_steps(table.records, header),
        # steps per token of requests that vanilla answered before / of the others
        "known_answers": known_answers(first_pass),
    }
    has_phases = spec.phases or frame["draft_s"].notna().any()  # steps were timed by phase
    if not has_phases:  # such timing slows steps
        fast_ratios = _fast_steps(table, timed, header)  # seconds of a step / vanilla's
        # If several methods are fast, the likely cause is a slow vanilla.
        fast_methods = {method for method, _ in fast_ratios}
        ratios_by_rule[FAST_STEP if len(fast_methods) < 2 else SLOW_VANILLA] = fast_ratios
        # seconds of a prefill / seconds of vanilla's prefill
        ratios_by_rule["fast_prefill"] = _below(table, timed, LEAST_PREFILL, "prefill_s")
        # vanilla's speed right after a method / its speed in other completions
        slowed_speeds = claimed(_by_neighbour(frame, is_timed), allowed=MOST_AFTER)
        ratios_by_rule["slowed_vanilla"] = {  # ratios of times
            subject: 1 / speed for subject, speed in slowed_speeds.items()
        }
    warnings = [_warning(key, ratios) for key, ratios in ratios_by_rule.items() if ratios]
    if ratios_by_rule["untimed_work"]:  # the first rule, so that its warning is the first
        # each method's speedup without and with its untimed work
        add_speedups(warnings[0].numbers["methods"], frame, header)
    warnings += slow_steps(header)  # a warning if vanilla's steps are slow
    # Fingerprints of the target's weights (or of a share of them), after loading and at the end.
    fingerprints = header.weights_print
    if fingerprints and fingerprints.at_load != fingerprints.at_end:
        warnings.append(RunWarning("changed_weights", {"share": fingerprints.share}))
    return tuple(warnings)


def _warning(key: str, ratios: Mapping[Subject, float]) -> RunWarning:
    """Make the warning of a rule from the ratio of each subject that the rule names."""
    methods: list[dict[str, Any]] = [
        {"method": method, "temperature": temperature, "ratio": ratio}
        for (method, temperature), ratio in ratios.items()
    ]
    return RunWarning(key, {"methods": methods})


def _fast_steps(table: RecordTable, timed: DataFrame, header: RunHeader) -> dict[Subject, float]:
    """Find the subjects whose steps are too fast, each with its step time / vanilla's.

    `timed` has the completions of methods. The smallest honest ratio is higher for a method with
    more CPU threads than vanilla.
    """
    fast = _below(table, timed, LEAST_STEP, "decode_s", "num_steps")
    if threads := header.threads:
        with_more = {method for method, num in threads.own.items() if num > threads.num}
        rows = timed[timed["method"].isin(with_more)]
        fast |= _below(table, rows, LEAST_STEP_MORE, "decode_s", "num_steps")
    return fast


def _below(
    table: RecordTable,
    completions: DataFrame,
    least: float,
    time_column: str,
    count_column: str | None = None,
) -> dict[Subject, float]:
    """Find the methods that are too fast, from their time / vanilla's time for the same requests.

    Both the upper end of the ratio's interval and the median over requests must be below `least`.
    The median does not move if another program slows down a few answers of vanilla.

    Args:
        table: the records of the run.
        completions: completions of methods, some rows of `table.frame`. `baseline_row` is the row
            of vanilla's completion of the same request, or -1.
        least: the smallest honest ratio.
        time_column: the column of seconds to compare.
        count_column: the column of a count such as steps, to compare seconds per step. None to
            compare the seconds themselves.

    Returns:
        The ratio of each subject (a method and a temperature) that is too fast.
    """
    ratios = {}  # subject -> ratio, if the median over requests is below `least`
    for subject, paired_rows in subjects(completions[completions["baseline_row"] >= 0]):
        rows = paired_rows.index.to_numpy()  # numbers of rows of the table
        baseline_rows = paired_rows["baseline_row"].to_numpy()
        # Factors of the ratio [rows]: time / vanilla's time, or, with a count,
        # (time * vanilla's count) / (vanilla's time * count).
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
        # over the rows whose seconds and counts are all positive
        row_ratio = RowRatio(is_positive, tuple(top_columns), tuple(bottom_columns))
        if _median(row_ratio) < least:
            # sums per sample, since the interval draws samples
            ratios[subject] = row_ratio.summed(table.groups(rows))
    draws = Draws(Bootstrap(), "first")  # the name of a random stream
    ratios_below = {}
    for subject, ratio in ratios.items():
        estimate = draws.estimate(ratio)
        if estimate.interval and estimate.interval.high < least:  # None: too few samples
            ratios_below[subject] = estimate.value
    return ratios_below


def _median(ratio: RowRatio) -> float:
    """Compute the median over rows of the product of `top` / the product of `bottom`."""
    logs = _sum_of_logs(ratio, ratio.top) - _sum_of_logs(ratio, ratio.bottom)  # [rows]
    return float(np.exp(np.median(logs)))


def _sum_of_logs(ratio: RowRatio, factors: Sequence[FloatArray]) -> FloatArray | int:
    return sum(np.log(factor[ratio.where]) for factor in factors)


def _by_neighbour(frame: DataFrame, is_timed: Series) -> Compared:
    """Find methods after which vanilla seems slow, with its speed there and in other completions.

    For each subject, `ratios` has vanilla's speed right after the method, and `references` its
    speed in all its other completions. A speed is a number of completions / the sum of their
    relative times. The relative time of a completion is its time per step / the median of vanilla's
    times per step on the same task and turn, at the same temperature. `frame` has one row per
    record, in the order in which they ran; `is_timed` [rows] is true for records with steps whose
    times count.
    """
    # The method whose record ran just before on the same worker; NaN for the first [rows].
    method_before = frame.groupby("worker", observed=True, sort=False)["method"].shift()
    vanilla_rows = frame[is_timed & (frame["method"] == BASELINE) & (frame["decode_s"] > 0)]
    step_s = vanilla_rows["decode_s"] / vanilla_rows["num_steps"]  # [vanilla_rows]
    group_columns = [vanilla_rows[name] for name in _GROUP]
    median_s = step_s.groupby(group_columns, observed=True).transform("median")
    rows = vanilla_rows.assign(
        completions=1.0,  # a row counts as a single completion
        relative_time=step_s / median_s,
        method_before=method_before[vanilla_rows.index],
    )
    after = {}  # subject -> vanilla's speed right after the method
    otherwise = {}  # subject -> vanilla's speed in its other completions
    for method in rows["method_before"].dropna().unique():
        is_after = rows["method_before"] == method
        # Both groups need LEAST_PAIRS of vanilla's completions.
        if method == BASELINE or min(is_after.sum(), (~is_after).sum()) < LEAST_PAIRS:
            continue
        median_after = rows["relative_time"][is_after].median()
        median_otherwise = rows["relative_time"][~is_after].median()
        if median_after > median_otherwise * (1 + MOST_AFTER):
            subject = str(method), 0.0  # 0.0 means all temperatures
            after[subject] = column_ratio(rows[is_after], ["completions"], ["relative_time"])
            otherwise[subject] = column_ratio(rows[~is_after], ["completions"], ["relative_time"])
    return Compared(after, otherwise)
