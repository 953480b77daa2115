"""Select the measured records of a run, and put them in the order in which an audit takes them."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TypeAlias

import numpy as np

from specbench.analysis.records import RecordTable
from specbench.types import Record

_GOLDEN = (np.sqrt(5) - 1) / 2
"""0.618...: its multiples, mod 1, fill [0, 1) evenly, however many are taken."""

Records: TypeAlias = Mapping[float, Mapping[str, Sequence[Record]]]
"""Temperature -> method -> its measured records."""


def usable_records(table: RecordTable) -> Records:
    """The measured records of a run, by temperature (from low to high) and then by method."""
    by_temperature: dict[float, dict[str, list[Record]]] = {}
    for record in compress(table.records, table.frame["is_measured"]):
        by_method = by_temperature.setdefault(record.key.temperature, {})
        by_method.setdefault(record.key.method, []).append(record)
    return dict(sorted(by_temperature.items()))


def one_per_draw(records: Sequence[Record]) -> list[Record]:
    """The records, with only one of those that have the same prompt and seed, as in a merge of runs
    with one seed. They are one draw, so their tokens are tested once. Greedy answers do not depend
    on the seed, so several passes over a prompt are one draw.
    """
    record_by_draw = {
        (key.task, key.sample_id, key.turn, key.temperature and record.seed): record
        for record in records
        for key in [record.key]
    }
    return [*record_by_draw.values()]


def spread(records: Sequence[Record]) -> list[Record]:
    """The records shuffled, so that the first few are spread evenly over the whole run.

    Point k is k * 0.618 mod 1. Each new point falls into one of the widest gaps between the earlier
    points. The k-th record of the result is the one whose index is the rank of point k.
    """
    num_records = len(records)
    points = np.arange(num_records) * _GOLDEN % 1
    ranks = np.argsort(np.argsort(points))  # the smallest point has rank 0
    return [records[rank] for rank in ranks.tolist()]
