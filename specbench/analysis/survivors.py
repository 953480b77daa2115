"""Find the requests that every ranked method finished. Methods are compared only on these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specbench.analysis.records import CELL_KEY
from specbench.analysis.stats.arrays import BoolArray

if TYPE_CHECKING:
    from pandas import DataFrame

LEAST_DONE = 0.5
"""The smallest share of a task's requests that a method must finish to be ranked on it."""

_OVER_METHODS = ["temperature", "task"]
"""The key columns that the cells of all methods on a task share."""


class Finished(NamedTuple):
    """Numbers of finished requests of a task."""

    num_done: int
    """Requests that the method finished."""

    num_by_any: int
    """Requests that any method finished."""


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """The rows of requests that every ranked method finished, and the methods without a rank."""

    is_shared: BoolArray
    """True for rows on which methods are compared [records]."""

    unranked: Mapping[tuple[str, float, str], Finished] = field(default_factory=dict)
    """(method, temperature, task) of an unranked method -> numbers of finished requests, if any."""

    num_requests: int = 0
    """The number of requests that any method finished."""

    num_shared: int = 0
    """The number of requests that every ranked method finished, even if the machine paused."""

    num_paused: int = 0
    """The number of shared requests with a pause of the machine. They are not compared."""


def find_survivors(frame: DataFrame) -> Survivors:
    """Find the records of requests that every ranked method finished, and the methods not ranked.

    A method is ranked on a task (at a temperature) if it finished at least LEAST_DONE of the
    requests that any method finished; vanilla is a method too. A request during which the machine
    paused is left out. `frame` has one row per record of a `RecordTable`; `asked` is the number of
    the request, the same for all methods.
    """
    is_measured = frame["is_measured"].to_numpy()  # False for failed records
    done_rows = frame[is_measured]
    if not len(done_rows):
        return Survivors(is_shared=is_measured)  # all False
    # For each done row: the number of requests that its method finished on the task (CELL_KEY has
    # the columns method, temperature and task), and the number that any method finished.
    num_done = done_rows.groupby(CELL_KEY, observed=True)["asked"].transform("size")
    num_by_any = done_rows.groupby(_OVER_METHODS, observed=True)["asked"].transform("nunique")
    is_ranked = num_done >= LEAST_DONE * num_by_any
    # one row per method, temperature and task where the method is not ranked
    unranked_cells = done_rows[~is_ranked].drop_duplicates(CELL_KEY)
    unranked = {
        (method, temperature, task): Finished(
            num_done=int(num_done[row]), num_by_any=int(num_by_any[row])
        )
        for row, method, temperature, task in unranked_cells[CELL_KEY].itertuples()
    }
    ranked_rows = done_rows[is_ranked]
    # For each ranked row: the number of methods ranked on its task, and of answers to its request.
    methods_of_tasks = ranked_rows.groupby(_OVER_METHODS, observed=True)["method"]
    num_ranked_methods = methods_of_tasks.transform("nunique")
    num_answers = ranked_rows.groupby("asked")["method"].transform("size")
    finished_by_all = ranked_rows[num_answers == num_ranked_methods]
    # for each request: a flag per method, True if the machine paused during its answer
    pauses_by_request = finished_by_all.groupby("asked")["is_paused"]
    is_paused = pauses_by_request.transform("any")  # in any answer to the row's request
    is_shared = np.zeros(len(frame), dtype=bool)
    is_shared[finished_by_all.index[~is_paused]] = True
    return Survivors(
        is_shared,
        unranked,
        num_requests=done_rows["asked"].nunique(),
        num_shared=len(pauses_by_request),
        num_paused=int(pauses_by_request.any().sum()),
    )
