"""Work of methods that their own times leave out: hidden from the clock, or outside completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.stats.arrays import BoolArray
from specbench.analysis.stats.significance import holm
from specbench.log.header import RunHeader

if TYPE_CHECKING:
    from pandas import DataFrame

Subject: TypeAlias = tuple[str, float]
"""A method and a temperature."""

MOST_HIDDEN = 0.1
"""The outer clock may exceed a completion's own time by this share of it."""
HIDDEN_S = 1e-3
"""The outer clock may exceed a completion's own time by this many seconds in addition."""
LEAST_HIDDEN = 0.2
"""A method is suspect if the outer clock exceeds the allowed time in more than this share of its
completions.
"""
HIDDEN_ALPHA = 0.001
"""Chance that any honest method of a run is said to hide time."""
MOST_UNTIMED = 0.05
"""Largest untimed work of a method / its decode time that causes no warning."""
BUILD_S = 0.5
"""Seconds that building a method may take, besides loading its weights."""
LOADED_BYTES_PER_S = 50e6
"""Bytes of weights that building a method may load per second."""
_BYTES_PER_NUMBER = 4
"""Bytes of a number in weights that are made in memory."""
USUAL_UNTIMED = 2.0
"""Untimed completions may take this many times the time of their steps and prefills in the run:
they are checked, and do not yet use the method's own number of threads.
"""
FIRST_USE_S = 0.5
"""Seconds that a method's untimed completions may take in addition, for work done only once."""
FIRST_USE_GPU_S = 10.0
"""FIRST_USE_S on a GPU, where kernels are compiled and loaded. It has not been measured yet."""


def hidden_time(table: RecordTable) -> dict[Subject, float]:
    """Seconds of completions by the outer clock / by their own times, by subject, if far more.

    A subject is a method and a temperature. The outer clock runs outside the decoding loop, which
    measures a completion's own time. A difference counts if the sum shows it, and a share of more
    than LEAST_HIDDEN of the completions: bursts of other programs hit only a few. They hit vanilla
    as well, so a method is named only if it has significantly more such completions than vanilla at
    its temperature (Fisher's exact test, one-sided, corrected by Holm).
    """
    # Seconds of each completion by the outer clock, and by its own.
    seconds_by_subject: dict[Subject, list[tuple[float, float]]] = defaultdict(list)
    for record in table.records:
        if record.outer_s is not None and record.wall_s is not None:
            subject = record.key.method, record.key.temperature
            seconds_by_subject[subject].append((record.outer_s, record.wall_s))
    # By subject: True for completions of which the outer clock saw more than it may [completions].
    is_more_by_subject: dict[Subject, BoolArray] = {}
    ratios: dict[Subject, float] = {}  # of subjects with far more, before the comparison
    for subject, second_pairs in seconds_by_subject.items():
        outer_s, own_s = np.array(second_pairs).T  # seconds [completions]
        # Both tests allow the own time, a share of it, and a fixed time per completion.
        is_more = outer_s > own_s * (1 + MOST_HIDDEN) + HIDDEN_S
        is_more_by_subject[subject] = is_more
        allowed_s = own_s.sum() * (1 + MOST_HIDDEN) + HIDDEN_S * len(second_pairs)
        is_much = outer_s.sum() > allowed_s and is_more.mean() > LEAST_HIDDEN
        if subject[0] != BASELINE and is_much:
            ratios[subject] = float(outer_s.sum() / own_s.sum())
    p_values = holm(
        {subject: _more_than_vanilla(is_more_by_subject, subject) for subject in ratios}
    )
    return {
        subject: ratios[subject]
        for subject, p_value in p_values.items()
        if p_value is not None and p_value < HIDDEN_ALPHA
    }


def _more_than_vanilla(is_more_by_subject: Mapping[Subject, BoolArray], subject: Subject) -> float:
    """The p-value of "the method has no larger share of long completions than vanilla".

    A completion is long (`is_more`) if the outer clock exceeds its own time by more than is
    allowed. Fisher's exact test, one-sided: of N completions of both, K are long; the method has n
    of the N, and k of the K. P(at least k) is hypergeometric. 1 without vanilla's completions.
    """
    from scipy.stats import hypergeom

    _, temperature = subject
    is_more = is_more_by_subject[subject]  # [completions], as of vanilla
    is_more_of_vanilla = is_more_by_subject.get((BASELINE, temperature))
    if is_more_of_vanilla is None:
        return 1.0
    num_both = len(is_more) + len(is_more_of_vanilla)  # N
    num_more_of_both = int(is_more.sum() + is_more_of_vanilla.sum())  # K
    return float(hypergeom.sf(is_more.sum() - 1, num_both, num_more_of_both, len(is_more)))


def untimed_work(frame: DataFrame, header: RunHeader) -> dict[Subject, float]:
    """Untimed work of methods / their decode times, if it is more than loading explains.

    `frame` has one row per record; `header.hooks` the seconds that methods spent outside
    completions. The ratios are by method and 0.0, which stands for all temperatures.
    """
    measured = frame[frame["is_measured"]]
    decode_s_of_method = measured.groupby("method", observed=True)["decode_s"].sum()
    ratios = {}
    for method, untimed_s in _untimed_seconds(frame, header).items():
        decode_s = float(decode_s_of_method.get(method, 0.0))
        if decode_s and untimed_s > MOST_UNTIMED * decode_s:
            ratios[method, 0.0] = untimed_s / decode_s
    return ratios


def add_speedups(entries: list[dict[str, Any]], frame: DataFrame, header: RunHeader) -> None:
    """Add to the `entries` of methods their speedups without and with their untimed work.

    A speedup is vanilla's seconds per token / the method's, over the requests that both answered.
    "timed" leaves untimed work out. "counted" adds all of the method's to the method's seconds, and
    none to vanilla's. `frame` is the frame of a record table; an entry has its "method".
    """
    untimed_seconds = _untimed_seconds(frame, header)
    for entry in entries:
        method = entry["method"]
        rows = frame[(frame["method"] == method) & frame["is_measured"]]
        rows = rows[rows["baseline_row"] >= 0]
        wall_s, base_wall_s = rows["wall_s"].sum(), rows["baseline_wall_s"].sum()
        if not wall_s or not base_wall_s:
            continue
        # tokens / vanilla's, which differ above temperature 0
        token_ratio = rows["num_tokens"].sum() / rows["baseline_num_tokens"].sum()
        entry["timed"] = float(base_wall_s / wall_s * token_ratio)
        entry["counted"] = float(base_wall_s / (wall_s + untimed_seconds[method]) * token_ratio)


def _untimed_seconds(frame: DataFrame, header: RunHeader) -> dict[str, float]:
    """Seconds that methods worked outside the run's completions, beyond what is usual.

    A build, loading weights, and completions of the warm-up and the priming that take no longer
    than others are usual. `frame` has one row per record. Vanilla is left out, since methods are
    compared with it.
    """
    measured = frame[frame["is_measured"]]
    seconds = {}
    for method, hooks in header.hooks.items():
        if method == BASELINE:
            continue
        load_s = _weight_bytes(header, method) / LOADED_BYTES_PER_S
        build_s = max(hooks.build_s - BUILD_S - load_s, 0.0)  # BUILD_S: a usual build
        # `remember` runs after completions, `forget` before each pass.
        seconds[method] = build_s + hooks.remember_s + hooks.forget_s
        rows = measured[(measured["method"] == method) & (measured["num_steps"] > 0)]
        if len(rows):
            step_s = rows["decode_s"].sum() / rows["num_steps"].sum()  # mean
            usual_s = (
                hooks.untimed_steps * step_s + hooks.untimed_prefills * rows["prefill_s"].max()
            )
            is_on_gpu = header.spec.values.device.startswith("cuda")
            first_s = FIRST_USE_GPU_S if is_on_gpu else FIRST_USE_S
            excess_s = hooks.untimed_s - USUAL_UNTIMED * float(usual_s) - first_s
            seconds[method] += max(excess_s, 0.0)
    return seconds


def _weight_bytes(header: RunHeader, method: str) -> int:
    """The bytes of a method's weights, in files and made in memory."""
    method_header = header.methods.get(method)
    weights = method_header.weights if method_header else None
    if weights is None:
        return 0
    file_bytes = sum(file.bytes for file in weights.files.values())
    return file_bytes + _BYTES_PER_NUMBER * (weights.num_numbers or 0)
