"""Work of methods that their own times leave out: hidden from the clock, or outside completions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from specbench.analysis.records import RecordTable
from specbench.log.header import RunHeader

if TYPE_CHECKING:
    from pandas import DataFrame

Subject: TypeAlias = tuple[str, float]
"""A method and a temperature."""

MOST_HIDDEN = 0.1
"""Share of its own time by which an outer clock may see more of a completion."""
HIDDEN_S = 1e-3
"""Seconds by which an outer clock may see more, besides that share."""
LEAST_HIDDEN = 0.2
"""The share of completions in which the outer clock has to see more than allowed."""
MOST_UNTIMED = 0.05
"""Untimed work of a method / its decode time, up to which there is no warning."""
BUILD_S = 0.5
"""Seconds that building a method may take, besides loading its weights."""
LOADED_BYTES_PER_S = 50e6
"""Bytes of weights that building a method may load per second."""
_BYTES_PER_NUMBER = 4
"""Of weights that are made in memory."""


def hidden_time(table: RecordTable) -> dict[Subject, float]:
    """Seconds of completions by the outer clock / by their own times, where it saw far more.

    The outer clock runs outside of the decoding loop, which takes a completion's own times. It
    counts if the sum and many completions show it: bursts of other programs hit only a few. A
    subject is a method and a temperature. The ratios are by subject.
    """
    # Seconds of each completion by the outer clock, and by its own.
    seconds_by_subject: dict[Subject, list[tuple[float, float]]] = defaultdict(list)
    for record in table.records:
        if record.outer_s is not None and record.wall_s is not None:
            subject = record.key.method, record.key.temperature
            seconds_by_subject[subject].append((record.outer_s, record.wall_s))
    ratios = {}
    for subject, second_pairs in seconds_by_subject.items():
        outer_s, own_s = np.array(second_pairs).T  # seconds [completions]
        # Either test allows a share of the own time and a fixed time per completion more.
        is_more = outer_s > own_s * (1 + MOST_HIDDEN) + HIDDEN_S
        allowed_s = own_s.sum() * (1 + MOST_HIDDEN) + HIDDEN_S * len(second_pairs)
        if outer_s.sum() > allowed_s and is_more.mean() > LEAST_HIDDEN:
            ratios[subject] = float(outer_s.sum() / own_s.sum())
    return ratios


def untimed_work(frame: DataFrame, header: RunHeader) -> dict[Subject, float]:
    """Untimed work of methods / their decode times, where it is more than loading explains.

    `frame` has one row per record; `header.hooks` the seconds that methods spent outside
    completions. The ratios are by method and 0.0, which stands for all temperatures.
    """
    measured = frame[frame["is_measured"]]
    decode_s_of_method = measured.groupby("method", observed=True)["decode_s"].sum()
    ratios = {}
    for method, hooks in header.hooks.items():
        # Seconds beyond a usual build and beyond loading the weights.
        load_s = _weight_bytes(header, method) / LOADED_BYTES_PER_S
        build_s = max(hooks.build_s - BUILD_S - load_s, 0.0)  # BUILD_S: a usual build
        # `remember` runs after completions, `forget` before each pass.
        untimed_s = build_s + hooks.remember_s + hooks.forget_s
        decode_s = float(decode_s_of_method.get(method, 0.0))
        if decode_s and untimed_s > MOST_UNTIMED * decode_s:
            ratios[method, 0.0] = untimed_s / decode_s
    return ratios


def _weight_bytes(header: RunHeader, method: str) -> int:
    """The bytes of a method's weights, in files and made in memory."""
    method_header = header.methods.get(method)
    weights = method_header.weights if method_header else None
    if weights is None:
        return 0
    file_bytes = sum(file.bytes for file in weights.files.values())
    return file_bytes + _BYTES_PER_NUMBER * (weights.num_numbers or 0)
