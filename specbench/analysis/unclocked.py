"""Find work that the times of methods leave out: hidden from the clock, or outside completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from specbench.analysis.grouping import group_by
from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.stats.arrays import BoolArray
from specbench.analysis.stats.significance import holm
from specbench.log.header import RunHeader

if TYPE_CHECKING:
    from pandas import DataFrame

Subject: TypeAlias = tuple[str, float]
"""A method and a temperature, where 0.0 may mean all temperatures."""

MOST_HIDDEN = 0.1
"""The share of a completion's own time by which the outer clock's time may be longer."""
HIDDEN_S = 1e-3
"""The seconds by which the outer clock's time may be longer in addition."""
LEAST_HIDDEN = 0.2
"""A method is suspect if the outer clock's time exceeds the allowed time in more than this share of
its completions.
"""
HIDDEN_ALPHA = 0.001
"""The largest chance that any honest method of a run is said to hide time."""
MOST_UNTIMED = 0.05
"""The largest ratio of unusual untimed seconds to decode seconds that causes no warning."""
BUILD_S = 0.5
"""The seconds that building a method may take, besides loading its weights."""
LOADED_BYTES_PER_S = 50e6
"""The bytes of weights that building a method may load per second."""
_BYTES_PER_NUMBER = 4
"""The bytes of a number in weights that are made in memory."""
USUAL_UNTIMED = 2.0
"""Untimed completions may take this many times as long as timed ones with as many steps and
prefills, since they are checked and do not yet use the method's own number of threads.
"""
FIRST_USE_S = 0.5
"""The seconds that a method's untimed completions may take in addition in each run, for work done
only once.
"""
FIRST_USE_GPU_S = 10.0
"""FIRST_USE_S for a GPU, where kernels are compiled and loaded. This guess was not measured yet."""


def hidden_time(table: RecordTable) -> dict[Subject, float]:
    """Find methods that hide time from the clock, each with its ratio of outer time to own time.

    The keys are subjects: a method and a temperature. The decoding loop measures a completion's own
    time. The outer clock runs outside the loop, and its time may be longer by a share of the own
    time and a fixed time (MOST_HIDDEN, HIDDEN_S). A method is suspect if the outer clock exceeds
    this allowed time both in total and in more than LEAST_HIDDEN of its completions, since other
    programs disturb only a few completions. They disturb vanilla too, so the method must also have
    a significantly larger share of such long completions than vanilla at its temperature (Fisher's
    exact test, one-sided, corrected by Holm).
    """
    # Failed records have no `wall_s`; records of servers and older runs have no `outer_s`.
    clocked_records = [
        record
        for record in table.records
        if record.outer_s is not None and record.wall_s is not None
    ]
    records_by_subject = group_by(
        clocked_records, key=lambda record: (record.key.method, record.key.temperature)
    )
    # subject -> True for completions whose outer time exceeds the allowed time [completions]
    is_long_by_subject: dict[Subject, BoolArray] = {}
    ratios: dict[Subject, float] = {}  # of suspect subjects, before the test against vanilla
    for (method, temperature), records in records_by_subject.items():
        # seconds by the outer clock, and by the completion's own [completions]
        outer_s = np.array([record.outer_s for record in records], dtype=np.float64)
        own_s = np.array([record.wall_s for record in records], dtype=np.float64)
        is_long = outer_s > own_s * (1 + MOST_HIDDEN) + HIDDEN_S  # [completions]
        is_long_by_subject[method, temperature] = is_long
        # the allowed seconds of all completions together
        allowed_s = own_s.sum() * (1 + MOST_HIDDEN) + HIDDEN_S * len(records)
        is_suspect = outer_s.sum() > allowed_s and is_long.mean() > LEAST_HIDDEN
        if method != BASELINE and is_suspect:
            ratios[method, temperature] = float(outer_s.sum() / own_s.sum())
    p_values = holm(
        {subject: _more_than_vanilla(is_long_by_subject, subject) for subject in ratios}
    )
    return {
        subject: ratios[subject]
        for subject, p_value in p_values.items()
        if p_value is not None and p_value < HIDDEN_ALPHA
    }


def _more_than_vanilla(is_long_by_subject: Mapping[Subject, BoolArray], subject: Subject) -> float:
    """Compute the p-value of "the method has no larger share of long completions than vanilla".

    A completion is long if the outer clock exceeds its own time by more than is allowed.
    `is_long_by_subject` has a flag for each completion of a method at a temperature.

    The test is Fisher's exact test, one-sided. The method and vanilla together have N completions,
    K of which are long. The method has n of them, k of which are long. The result is
    P(at least k) of the hypergeometric distribution, or 1 if vanilla has no completions at the
    temperature.
    """
    from scipy.stats import hypergeom

    _, temperature = subject
    is_long = is_long_by_subject[subject]  # flags of the method's completions [n]
    is_long_of_vanilla = is_long_by_subject.get((BASELINE, temperature))  # [N - n]
    if is_long_of_vanilla is None:
        return 1.0
    num_both = len(is_long) + len(is_long_of_vanilla)  # N
    num_long_of_both = int(is_long.sum() + is_long_of_vanilla.sum())  # K
    # sf(k - 1) = P(more than k - 1) = P(at least k)
    return float(hypergeom.sf(is_long.sum() - 1, num_both, num_long_of_both, len(is_long)))


def untimed_work(frame: DataFrame, header: RunHeader) -> dict[Subject, float]:
    """Find methods with much untimed work, each with its ratio of untimed to timed work.

    The ratio is the seconds outside completions beyond what is usual (`_untimed_seconds`) / decode
    seconds. The result has only ratios above MOST_UNTIMED, and none for vanilla. A key is a method
    and 0.0, which stands for all temperatures. `frame` has one row per record; `header` has the
    seconds that methods spent outside completions.
    """
    measured = frame[frame["is_measured"]]  # without failed records
    decode_s_of_method = measured.groupby("method", observed=True)["decode_s"].sum()
    ratios = {}
    for method, untimed_s in _untimed_seconds(frame, header).items():
        decode_s = float(decode_s_of_method.get(method, 0.0))
        if decode_s and untimed_s > MOST_UNTIMED * decode_s:
            ratios[method, 0.0] = untimed_s / decode_s
    return ratios


def add_speedups(entries: list[dict[str, Any]], frame: DataFrame, header: RunHeader) -> None:
    """Add two speedups to each method's entry in a warning: without and with its untimed work.

    A speedup is vanilla's seconds per token / the method's, over the requests that both answered.
    `entry["timed"]` leaves out untimed work. `entry["counted"]` adds the method's untimed seconds
    beyond what is usual (`_untimed_seconds`) to its times, and none to vanilla's. No speedup is
    added if there are no times.

    Args:
        entries: the entries of the warning about untimed work. Each has the "method", which is
            never vanilla, and gets the speedups.
        frame: the frame of a record table. Columns `baseline_...` have the numbers of vanilla's
            answer to the same request.
        header: has the seconds that methods spent outside completions.
    """
    untimed_seconds = _untimed_seconds(frame, header)
    for entry in entries:
        method = entry["method"]
        # The answer did not fail, and there is an answer of vanilla to compare with (else -1).
        is_paired = frame["is_measured"] & (frame["baseline_row"] >= 0)
        rows = frame[(frame["method"] == method) & is_paired]
        wall_s, base_wall_s = rows["wall_s"].sum(), rows["baseline_wall_s"].sum()
        if not wall_s or not base_wall_s:
            continue
        # tokens / vanilla's tokens: the numbers differ above temperature 0
        token_ratio = rows["num_tokens"].sum() / rows["baseline_num_tokens"].sum()
        entry["timed"] = float(base_wall_s / wall_s * token_ratio)
        entry["counted"] = float(base_wall_s / (wall_s + untimed_seconds[method]) * token_ratio)


def _untimed_seconds(frame: DataFrame, header: RunHeader) -> dict[str, float]:
    """Compute the seconds that each method worked outside the run's completions, beyond the usual.

    Building a method may take BUILD_S and the time to load its weights. Untimed completions may
    take USUAL_UNTIMED times as long as timed ones, and in each run together FIRST_USE_S
    (FIRST_USE_GPU_S on a GPU) more. Untimed completions are those of the warm-up, and on a GPU the
    first tokens of each request, which are completed once before it is timed. They are not judged
    for a method without timed steps. All seconds in the method's own code after completions
    (`remember`) and before passes (`forget`) count. Vanilla is left out, since methods are compared
    with it. `frame` has one row per record; `header.hooks` has each method's seconds, and the
    numbers of its untimed steps and prefills, and of its runs.
    """
    measured = frame[frame["is_measured"]]  # without failed records
    untimed_seconds = {}
    for method, hooks in header.hooks.items():
        if method == BASELINE:
            continue
        load_s = _weight_bytes(header, method) / LOADED_BYTES_PER_S
        build_excess_s = max(hooks.build_s - BUILD_S - load_s, 0.0)
        untimed_seconds[method] = build_excess_s + hooks.remember_s + hooks.forget_s
        rows = measured[(measured["method"] == method) & (measured["num_steps"] > 0)]
        if len(rows):
            step_s = rows["decode_s"].sum() / rows["num_steps"].sum()  # mean seconds of timed steps
            # seconds that the untimed completions take with mean steps and the slowest prefill
            usual_s = (
                hooks.untimed_steps * step_s + hooks.untimed_prefills * rows["prefill_s"].max()
            )
            is_on_gpu = header.spec.values.device.startswith("cuda")
            first_use_s = FIRST_USE_GPU_S if is_on_gpu else FIRST_USE_S
            allowed_s = USUAL_UNTIMED * float(usual_s) + first_use_s * hooks.num_runs
            excess_s = hooks.untimed_s - allowed_s
            untimed_seconds[method] += max(excess_s, 0.0)
    return untimed_seconds


def _weight_bytes(header: RunHeader, method: str) -> int:
    """Count the bytes of a method's weights, both in files and made in memory; 0 if unknown."""
    method_header = header.methods.get(method)
    weights = method_header.weights if method_header else None
    if weights is None:
        return 0
    file_bytes = sum(file.bytes for file in weights.files.values())
    return file_bytes + _BYTES_PER_NUMBER * (weights.num_numbers or 0)
