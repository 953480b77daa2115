"""Make the notes about loads: the best method at each, and the load up to which a method is faster.

A load is a number of requests that a server works on at once.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from specbench.analysis.break_even import break_even
from specbench.analysis.columns import value_or_none
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.serving import ServingMetrics
from specbench.analysis.stats.estimates import Estimate, Interval
from specbench.log.run import loads_of
from specbench.report import formats
from specbench.report.texts import Note, Numbers, make_note

LOAD_KEYS = ("at_load", "slower_at_load", "loads")
"""The keys of the notes about loads, which come first in a report."""


def load_notes(runs: Sequence[RunMetrics]) -> Iterator[Note]:
    """Yield the notes about loads, for runs in which servers got several requests at once.

    For each load, a note names the method with the highest throughput. For each method and
    temperature, a note says up to which load it is faster than vanilla. `runs` has an element for
    each load of a run.
    """
    # the metrics of a run, by the run's id and by load
    runs_by_id: dict[str, dict[int, RunMetrics]] = {}
    for run in runs:
        loads = loads_of(run.info.spec.values)  # the loads that were asked for
        # A load that is a rate of requests has 0 requests at once.
        if run.info.servers and len(loads) == 1 and loads[0].concurrency:
            runs_by_id.setdefault(run.info.id, {})[loads[0].concurrency] = run
    for run_by_load in runs_by_id.values():
        if max(run_by_load) > 1:
            run_by_rising_load = {load: run_by_load[load] for load in sorted(run_by_load)}
            for load, run in run_by_rising_load.items():
                yield from _most_throughput(load, run)
            yield from _break_evens(run_by_rising_load)


def _most_throughput(load: int, run: RunMetrics) -> Iterator[Note]:
    """Yield a note for each temperature about the method with the highest throughput at a load.

    `load` is a number of requests at once, and `run` has the metrics at this load. A temperature
    has no note if no method's throughput can be compared with vanilla's.
    """
    for temperature in run.temperatures:
        # The throughput of each method / vanilla's, without missing ratios.
        ratios = {
            method: serving.throughput_ratio
            for (method, method_temperature), serving in run.serving.items()
            if method_temperature == temperature
            and method != BASELINE
            and isinstance(serving.throughput_ratio, Estimate)
        }
        if not ratios:
            continue
        best_method = max(ratios, key=lambda method: ratios[method].value)
        vanilla = run.serving.get((BASELINE, temperature))  # None if vanilla did not run
        ratio = ratios[best_method]
        yield make_note(
            "at_load" if ratio.value > 1 else "slower_at_load",
            run.info,
            load=load,
            temperature=temperature,
            method=best_method,
            ratio=ratio,
            interval=formats.brackets(ratio),
            ttft=_ttft_change(run.serving[best_method, temperature], vanilla),
        )


def _break_evens(run_by_load: Mapping[int, RunMetrics]) -> Iterator[Note]:
    """Yield a note for each method and temperature about its throughputs and its break-even load.

    The break-even load is the number of requests at once at which the method is as fast as vanilla.
    Methods are sorted by their throughput / vanilla's at the highest load, with the highest first.
    A method with such a ratio at fewer than two loads has no note. `run_by_load` has the metrics at
    each load, in rising order.
    """
    runs = [*run_by_load.values()]
    at_lowest_load, at_highest_load = runs[0], runs[-1]

    def highest_load_ratio(method_and_temperature: tuple[str, float]) -> float:
        """Return the throughput / vanilla's at the highest load, or 0 if it is missing."""
        serving = at_highest_load.serving.get(method_and_temperature)
        return (value_or_none(serving.throughput_ratio) if serving else None) or 0.0

    # `serving` has the metrics of servers by method and temperature.
    for method, temperature in sorted(at_lowest_load.serving, key=highest_load_ratio, reverse=True):
        if method == BASELINE:
            continue
        ratios: dict[int, Estimate] = {}  # the throughput / vanilla's, by load
        numbers_by_load: list[Numbers] = []  # for the note, with a dict for each load
        for load, run in run_by_load.items():
            serving = run.serving.get((method, temperature))
            if serving is None or not isinstance(serving.throughput_ratio, Estimate):
                continue
            ratio = serving.throughput_ratio
            ratios[load] = ratio
            ttft_change = _ttft_change(serving, run.serving.get((BASELINE, temperature)))
            numbers_by_load.append({"ratio": ratio.value, "load": load, "ttft": ttft_change})
        if len(ratios) > 1:
            yield make_note(
                "loads",
                at_lowest_load.info,  # has the name of the method
                method=method,
                temperature=temperature,
                loads=numbers_by_load,
                **break_even_numbers(ratios),
            )


def _ttft_change(serving: ServingMetrics, vanilla: ServingMetrics | None) -> str | None:
    """Return the change from vanilla's mean time to the first token (TTFT), such as "+10 %".

    It is None if vanilla did not run (`vanilla` is None), if either time is missing, or if
    vanilla's is 0.
    """
    if vanilla is None:
        return None
    ttft, vanilla_ttft = serving.ttft.mean, vanilla.ttft.mean  # in seconds
    if not isinstance(ttft, Estimate) or not isinstance(vanilla_ttft, Estimate):
        return None
    if not vanilla_ttft.value:
        return None
    percent = round(100 * (ttft.value / vanilla_ttft.value - 1))
    return f"{percent:+} %" if percent else "unchanged"


def break_even_numbers(ratios: Mapping[int, Estimate]) -> Numbers:
    """Return the break-even load of a method for its note. Each key selects a phrase of the note.

    - "crossing": the load at which the throughput falls to vanilla's, between the measured loads
      "last_faster" and "first_slower".
    - "everywhere": the highest load, if the method is faster than vanilla at all loads.
    - "nowhere": the lowest load, if the method is not faster at any load.
    - "between": the range of loads in words, if the interval of the break-even load covers all
      loads.
    - "interval": the interval of the break-even load in words, or None.

    The result is empty if the method is not faster at the lowest load, but is faster at a higher
    one. `ratios` are the throughputs of the method / vanilla's by load, in rising order.
    """
    crossing = break_even(ratios)
    loads = [*ratios]
    # `load` is 0 if the method is not faster at the lowest load. It is infinite if it always is.
    if crossing.load == 0 and any(ratio.value > 1 for ratio in ratios.values()):
        return {}
    interval = crossing.interval  # the interval of the break-even load, or None
    if interval and interval.low == 0 and math.isinf(interval.high):
        return {"between": f"between {loads[0]} and {loads[-1]} requests at once"}
    interval_text = _interval_text(interval) if interval else None
    if crossing.load == 0:
        return {"nowhere": crossing.first_slower, "interval": interval_text}
    if math.isinf(crossing.load):
        return {"everywhere": crossing.last_faster, "interval": interval_text}
    return {
        "crossing": crossing.load,
        "last_faster": crossing.last_faster,
        "first_slower": crossing.first_slower,
        "interval": interval_text,
    }


def _interval_text(interval: Interval) -> str | None:
    """Return the ends of an interval of loads in words.

    The ends 0 and infinity lie beyond the measured loads. The result is None if both ends are 0 or
    both are infinite. The interval from 0 to infinity is never passed.
    """
    if math.isinf(interval.low) or interval.high == 0:
        return None
    low = formats.requests(3, interval.low)
    high = formats.requests(3, interval.high)
    if low == high:
        return low
    if interval.low == 0:
        return f"{high} or fewer"
    if math.isinf(interval.high):
        return f"{low} or more"
    return f"{formats.at_least(3, interval.low)} to {high}"
