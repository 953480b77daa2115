"""The completions that methods are compared on: requests that every ranked method finished.

A method that fails on the prompts it is slow at must not gain by it. A request during which
the machine paused is left out for all methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specbench.analysis.columns import CELL_KEY, REQUEST_KEY
from specbench.analysis.stats.effects import BoolArray

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_DONE = 0.5
"""Share of a task's requests that a method must finish to be compared on it."""


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """The rows of a table that every ranked method has, and the methods that are not ranked.

    `is_shared` is [records]. `unranked` maps method, temperature and task to the numbers of
    requests that were finished and asked; `num_requests` and `num_shared` count those that any
    and that every ranked method finished, by temperature and task. `num_paused` of these are
    left out of `is_shared`.
    """

    is_shared: BoolArray
    unranked: Mapping[tuple[str, float, str], tuple[int, int]] = field(default_factory=dict)
    num_requests: int = 0
    num_shared: int = 0
    num_paused: int = 0


def find_survivors(frame: DataFrame) -> Survivors:
    """The survivors among the records of the frame of a `RecordTable`."""
    is_measured = frame["is_measured"].to_numpy()
    done = frame[is_measured]
    if not len(done):
        return Survivors(is_measured)
    cells = done.groupby(CELL_KEY, observed=True, sort=False).size()
    asked = done.groupby(REQUEST_KEY, observed=True, sort=False).size()
    num_asked = asked.groupby(["temperature", "task"], observed=True).size()
    unranked = {
        (method, temperature, task): (int(number), int(num_asked[temperature, task]))
        for (method, temperature, task), number in cells.items()
        if number < LEAST_DONE * num_asked[temperature, task]
    }
    keys = zip(done["method"], done["temperature"], done["task"], strict=True)
    ranked = done[[key not in unranked for key in keys]] if unranked else done
    request = ranked.groupby(REQUEST_KEY, observed=True, sort=False)["method"]
    num_finished = request.transform("size")
    num_methods = ranked.groupby(["temperature", "task"], observed=True)["method"].transform(
        "nunique"
    )
    finished = ranked[num_finished == num_methods]
    paused = finished.groupby(REQUEST_KEY, observed=True, sort=False)["is_paused"]
    kept = finished[~paused.transform("any")]
    is_shared = is_measured & False
    is_shared[kept.index] = True
    num_paused = int(paused.any().sum())
    return Survivors(
        is_shared, unranked, num_requests=len(asked), num_shared=len(paused), num_paused=num_paused
    )
