"""Recompute the statistics that tools print from the values of single requests."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import NamedTuple

from specbench.log.exchange.format import rate_figure
from specbench.log.exchange.source import Fields
from specbench.log.imported import ImportedFigure
from specbench.types import Record

SAME = 1e-6
"""Largest relative difference, beyond the rounding of its digits, between a printed number and the
recomputed one.
"""
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")
_STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "avg": fmean,
    "median": median,
    "std": pstdev,
    "min": min,
    "max": max,
}


def statistic(name: str, numbers: Sequence[float]) -> float | None:
    """The statistic with this name, such as "mean" or "p99", or None if the name is unknown or
    there are no numbers.

    Percentiles are interpolated linearly, as in numpy. The standard deviation divides by the number
    of values.
    """
    if not numbers:
        return None
    if name in _STATISTICS:
        return _STATISTICS[name](numbers)
    match = _PERCENTILE.fullmatch(name)
    if match is None or float(match[1]) > 100:
        return None
    # The percentile lies between two neighbours in the sorted numbers.
    position = float(match[1]) / 100 * (len(numbers) - 1)
    index_below = math.floor(position)
    below, above = sorted(numbers)[index_below], sorted(numbers)[math.ceil(position)]
    return below + (above - below) * (position - index_below)


class RequestTimes(NamedTuple):
    """Seconds of requests that did not fail."""

    first: list[float]
    """To the first token."""
    per_token: list[float]
    """Per token after the first, for requests with several tokens."""
    between: list[float]
    """Between the chunks of a request."""
    whole: list[float]
    """For the whole request."""


def request_times(records: Sequence[Record]) -> RequestTimes:
    """The times that serving benchmarks summarise."""
    done = [record for record in records if record.is_ok]
    return RequestTimes(
        first=[record.prefill_s or 0.0 for record in done],
        per_token=[
            (record.decode_s or 0.0) / (record.num_tokens - 1)
            for record in done
            if record.num_tokens > 1
        ],
        between=[gap for record in done if record.serving for gap in record.serving.gaps_s],
        whole=[record.wall_s or 0.0 for record in done],
    )


def printed_figure(fields: Fields, name: str, recomputed: float, unit: str = "") -> ImportedFigure:
    """A number recomputed from requests, with the number that the file has under this name.

    If the file's number differs, or is a text, this is noted. The file may lack the number.
    """
    printed = fields.get(name, float | str, None)
    if isinstance(printed, str):
        fields.note(f"{name} is the text {printed!r}, not a number: it is left out")
        printed = None
    if printed is not None and not math.isclose(printed, recomputed, rel_tol=SAME, abs_tol=SAME):
        fields.note(f"{name} is {printed:g}, but its requests give {recomputed:g}, which is used")
    return rate_figure(name, recomputed, "its requests", unit, printed=printed)
