"""Rules that find speed which drafting does not explain. Honest runs pass them.

They judge methods of the engine in this process, not those of servers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from specbench.analysis.ratios import RowRatio, column_ratio
from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.stats.arrays import BoolArray, FloatArray
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Ratio
from specbench.analysis.stats.estimates import without_spread
from specbench.analysis.stats.significance import GATE_ALPHA, holm, slower
from specbench.analysis.stats.variance import EXACT
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FAST_STEP, SLOW_VANILLA = "fast_step", "slow_vanilla"
"""Keys of the warning about steps that are faster than vanilla's, of one method and of several."""
Subject: TypeAlias = tuple[str, float]
"""A method and a temperature."""
LEAST_STEPS = 0.95
"""Least steps for as many tokens, in later passes / in the first, without a hidden memory."""
LEAST_STEP, LEAST_STEP_MORE, LEAST_PREFILL = 0.9, 0.95, 0.8
"""Least time of a step, of one with more threads than vanilla's, and of a prefill, / vanilla's
that noise and kernels explain. The number of threads is the fastest to within 5 %.
"""
MOST_AFTER = 0.1
"""Vanilla's steps may take longer by this share after a method than after others."""
LEAST_PAIRS = 8
MOST_HIDDEN, HIDDEN_S, LEAST_HIDDEN = 0.1, 1e-3, 0.2
"""Share of its own times by which an outer clock may see more of a completion, and seconds;
and the share of completions in which it has to see more.
"""
MOST_UNTIMED = 0.05
"""Untimed work of a method / its decode time, up to which there is no warning."""
BUILD_S, LOADED_BYTES_PER_S = 0.5, 50e6
"""Seconds that building a method may take, and bytes of weights a second that it may load."""
_GROUP = ["temperature", "task", "turn"]
"""Columns of vanilla's completions whose steps should take equally long."""


def find_cheats(table: RecordTable, info: RunHeader) -> tuple[RunWarning, ...]:
    """A warning for each rule that names methods.

    Its numbers are ratios of steps or of times. The records of `table` stand in the order in
    which they ran.
    """
    values, frame = info.spec.values, table.frame
    if values.backend or info.servers or not len(frame):
        return ()
    is_used = frame["is_measured"] & ~frame["is_paused"] & (frame["num_steps"] > 0)
    own = frame[is_used & (frame["method"] != BASELINE)]
    found: dict[str, dict[Subject, float]] = {
        "untimed_work": _untimed(frame, info),
        "hidden_time": {} if values.trace else _hidden(table),
        "remembered_answers": _claimed(_later_passes(own)),
        "known_answers": _claimed(*_by_order(own[own["repeat"] == 0])),
    }
    if not (values.phases or frame["draft_s"].notna().any()):  # timing phases slows steps
        fast = _below(table, own, LEAST_STEP, "decode_s", "num_steps")
        if info.threads:
            more = {one for one, num in info.threads.own.items() if num > info.threads.num}
            rows = own[own["method"].isin(more)]
            fast |= _below(table, rows, LEAST_STEP_MORE, "decode_s", "num_steps")
        found[FAST_STEP if len({method for method, _ in fast}) < 2 else SLOW_VANILLA] = fast
        found["fast_prefill"] = _below(table, own, LEAST_PREFILL, "prefill_s")
        slow = _claimed(*_by_neighbour(frame, is_used), MOST_AFTER)
        found["slowed_vanilla"] = {subject: 1 / speed for subject, speed in slow.items()}
    warnings = [RunWarning(key, {"methods": _numbers(one)}) for key, one in found.items() if one]
    printed = info.weights_print
    if printed and printed.at_load != printed.at_end:
        warnings.append(RunWarning("changed_weights", {"share": printed.share}))
    return tuple(warnings)


def _hidden(table: RecordTable) -> dict[Subject, float]:
    """Seconds of completions by the outer clock / by their own times, where it saw far more.

    It counts if the sum and many completions show it: bursts of other programs hit only a few.
    """
    times: dict[Subject, list[tuple[float, float]]] = defaultdict(list)
    for one in table.records:
        if one.outer_s is not None and one.wall_s is not None:
            times[one.key.method, one.key.temperature].append((one.outer_s, one.wall_s))
    found = {}
    for subject, pairs in times.items():
        outer_s, own_s = np.array(pairs).T
        is_more = outer_s > own_s * (1 + MOST_HIDDEN) + HIDDEN_S
        limit_s = own_s.sum() * (1 + MOST_HIDDEN) + HIDDEN_S * len(pairs)
        if outer_s.sum() > limit_s and is_more.mean() > LEAST_HIDDEN:
            found[subject] = float(outer_s.sum() / own_s.sum())
    return found


def _untimed(frame: DataFrame, info: RunHeader) -> dict[Subject, float]:
    """Untimed work of methods / their decode times, where it is more than loading explains."""
    decode_s = frame[frame["is_measured"]].groupby("method", observed=True)["decode_s"].sum()
    found = {}
    for method, one in info.hooks.items():
        about = info.methods.get(method)
        weights = about.weights if about else None
        num_bytes = sum(file.bytes for file in weights.files.values()) if weights else 0
        num_bytes += 4 * (weights.num_numbers or 0) if weights else 0
        build_s = max(one.build_s - BUILD_S - num_bytes / LOADED_BYTES_PER_S, 0.0)
        work_s, own_s = build_s + one.remember_s + one.forget_s, float(decode_s.get(method, 0.0))
        if own_s and work_s > MOST_UNTIMED * own_s:
            found[method, 0.0] = work_s / own_s
    return found


def _numbers(found: Mapping[Subject, float]) -> list[dict[str, Any]]:
    return [
        {"method": method, "temperature": temperature, "ratio": ratio}
        for (method, temperature), ratio in found.items()
    ]


def _claimed(
    ones: Mapping[Subject, Ratio],
    others: Mapping[Subject, Ratio] | None = None,
    limit: float = 1 / LEAST_STEPS - 1,
) -> dict[Subject, float]:
    """Ratios of `ones` to `others` (by default: 1) that are lower by more than the limit.

    `slower` tests each, and Holm's procedure corrects for their number.
    """
    first, second = (Draws(Bootstrap(), stream) for stream in ("first", "second"))
    pairs = {
        key: (first.estimate(one), second.estimate(others[key]) if others else without_spread(1.0))
        for key, one in ones.items()
    }
    p_values = holm({key: slower(*pair, limit, EXACT) for key, pair in pairs.items()})
    return {
        key: pairs[key][0].value / pairs[key][1].value
        for key, p_value in p_values.items()
        if p_value is not None and p_value <= GATE_ALPHA
    }


def _subjects(frame: DataFrame) -> Iterator[tuple[Subject, DataFrame]]:
    groups = frame.groupby(["method", "temperature"], observed=True, sort=False)
    for (method, temperature), rows in groups:
        yield (str(method), float(temperature)), rows


def _later_passes(own: DataFrame) -> dict[Subject, Ratio]:
    """Steps per token in later passes / in the first, over requests that both have."""
    found = {}
    for subject, rows in _subjects(own):
        is_first = rows["repeat"] == 0
        both = set(rows["request"][is_first]) & set(rows["request"][~is_first])
        if both:
            parts = {
                f"{name} {when}": rows[name].where(where, 0)
                for name in ("num_emitted", "num_steps")
                for when, where in (("first", is_first), ("later", ~is_first))
            }
            found[subject] = column_ratio(
                rows.assign(**parts)[rows["request"].isin(both)],
                ("num_steps later", "num_emitted first"),
                ("num_emitted later", "num_steps first"),
            )
    return found


def _by_order(own: DataFrame) -> tuple[dict[Subject, Ratio], dict[Subject, Ratio]]:
    """Steps per token where vanilla had answered the request before, and where it had not."""
    after, before = {}, {}
    for subject, rows in _subjects(own[own["baseline_row"] >= 0]):
        is_after = rows["baseline_row"] < rows.index
        if is_after.any() and not is_after.all():
            after[subject] = column_ratio(rows[is_after], ["num_steps"], ["num_emitted"])
            before[subject] = column_ratio(rows[~is_after], ["num_steps"], ["num_emitted"])
    return after, before


def _below(table: RecordTable, own: DataFrame, least: float, *columns: str) -> dict[Subject, float]:
    """Ratios of a time (over steps) to vanilla's whose interval ends below `least`.

    Their median has to be below it too: bursts of other programs that hit vanilla are not enough.
    """
    ratios = {}
    for subject, rows in _subjects(own[own["baseline_row"] >= 0]):
        at, partner = rows.index.to_numpy(), rows["baseline_row"].to_numpy()
        mine, theirs = table.values(at, *columns), table.values(partner, *columns)
        where = np.logical_and.reduce([one > 0 for one in (*mine, *theirs)])
        top, bottom = (mine[0], *theirs[1:]), (theirs[0], *mine[1:])
        if where.any() and _median(where, top, bottom) < least:
            ratios[subject] = RowRatio(where, top, bottom).summed(table.places(at))
    draws = Draws(Bootstrap(), "first")
    found = {subject: draws.estimate(ratio) for subject, ratio in ratios.items()}
    return {
        key: one.value for key, one in found.items() if one.interval and one.interval.high < least
    }


def _median(where: BoolArray, top: Sequence[FloatArray], bottom: Sequence[FloatArray]) -> float:
    logs = sum(np.log(one[where]) for one in top) - sum(np.log(one[where]) for one in bottom)
    return float(np.exp(np.median(logs)))


def _by_neighbour(
    frame: DataFrame, is_used: Series
) -> tuple[dict[Subject, Ratio], dict[Subject, Ratio]]:
    """Vanilla's speed right after each method, and after all others.

    Times a step are relative to the median of their task, turn and temperature.
    """
    before = frame.groupby("worker", observed=True, sort=False)["method"].shift()
    rows = frame[is_used & (frame["method"] == BASELINE) & (frame["decode_s"] > 0)]
    step_s = rows["decode_s"] / rows["num_steps"]
    usual = step_s.groupby([rows[name] for name in _GROUP], observed=True).transform("median")
    rows = rows.assign(one=1.0, time=step_s / usual, before=before[rows.index])
    after, others = {}, {}
    for method in rows["before"].dropna().unique():
        is_after = rows["before"] == method
        if method == BASELINE or min(is_after.sum(), (~is_after).sum()) < LEAST_PAIRS:
            continue
        times = rows["time"][is_after].median(), rows["time"][~is_after].median()
        if times[0] > times[1] * (1 + MOST_AFTER):
            after[str(method), 0.0] = column_ratio(rows[is_after], ["one"], ["time"])
            others[str(method), 0.0] = column_ratio(rows[~is_after], ["one"], ["time"])
    return after, others
