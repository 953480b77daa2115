"""The notes on loads: the highest throughput at each, and up to which load each method pays."""

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
"""Keys of these notes, which every report has first."""


def load_notes(runs: Sequence[RunMetrics]) -> Iterator[Note]:
    """A note for each load of a run with loads above one request at once, and one for each method
    that was measured at several.

    `runs` has an element for each load of such a run.
    """
    # id of a run -> number of requests at once -> the run at this load
    runs_by_id: dict[str, dict[int, RunMetrics]] = {}
    for run in runs:
        loads = loads_of(run.info.spec.values)
        if run.info.servers and len(loads) == 1 and loads[0].concurrency:
            runs_by_id.setdefault(run.info.id, {})[loads[0].concurrency] = run
    for runs_by_load in runs_by_id.values():
        if max(runs_by_load) > 1:
            by_load = {load: runs_by_load[load] for load in sorted(runs_by_load)}
            for load, run in by_load.items():
                yield from _most_throughput(load, run)
            yield from _break_evens(by_load)


def _most_throughput(load: int, run: RunMetrics) -> Iterator[Note]:
    """The method of the highest throughput at a load, for each temperature."""
    for temperature in run.temperatures:
        ratios = {
            method: serving.throughput_ratio
            for (method, at_temperature), serving in run.serving.items()
            if at_temperature == temperature and method != BASELINE
        }
        measured = {
            method: ratio for method, ratio in ratios.items() if isinstance(ratio, Estimate)
        }
        if not measured:
            continue
        best = max(measured, key=lambda method: measured[method].value)
        serving, vanilla = run.serving[best, temperature], run.serving.get((BASELINE, temperature))
        yield make_note(
            "at_load" if measured[best].value > 1 else "slower_at_load",
            run.info,
            load=load,
            temperature=temperature,
            method=best,
            ratio=measured[best],
            interval=formats.brackets(measured[best]),
            ttft=_ttft_change(serving, vanilla),
        )


def _break_evens(runs_by_load: dict[int, RunMetrics]) -> Iterator[Note]:
    """The break-even loads of a run's methods, in the order of their throughput at the highest
    load. `runs_by_load` has the run at each number of requests at once.
    """
    runs = [*runs_by_load.values()]
    lowest_load, highest_load = runs[0], runs[-1]

    def throughput_ratio(method_and_temperature: tuple[str, float]) -> float:
        serving = highest_load.serving.get(method_and_temperature)
        return (value_or_none(serving.throughput_ratio) if serving else None) or 0.0

    for method, temperature in sorted(lowest_load.serving, key=throughput_ratio, reverse=True):
        if method == BASELINE:
            continue
        ratios: dict[int, Estimate] = {}  # of throughputs, by load
        numbers_by_load: list[Numbers] = []
        for load, run in runs_by_load.items():
            serving = run.serving.get((method, temperature))
            if serving is None or not isinstance(serving.throughput_ratio, Estimate):
                continue
            ratio = serving.throughput_ratio
            ratios[load] = ratio
            ttft_change = _ttft_change(serving, run.serving.get((BASELINE, temperature)))
            numbers_by_load.append({"ratio": ratio.value, "load": load, "ttft": ttft_change})
        if len(ratios) > 1:
            verdict = break_even_numbers(ratios)
            yield make_note(
                "loads",
                lowest_load.info,
                method=method,
                temperature=temperature,
                loads=numbers_by_load,
                **verdict,
            )


def _ttft_change(serving: ServingMetrics, vanilla: ServingMetrics | None) -> str | None:
    """The change of the time to the first token against vanilla's, such as "+10 %"."""
    if vanilla is None:
        return None
    ttft, vanilla_ttft = serving.ttft.mean, vanilla.ttft.mean
    if not isinstance(ttft, Estimate) or not isinstance(vanilla_ttft, Estimate):
        return None
    if not vanilla_ttft.value:
        return None
    return f"{ttft.value / vanilla_ttft.value - 1:+.0%}".replace("%", " %")


def break_even_numbers(ratios: Mapping[int, Estimate]) -> Numbers:
    """The break-even load in words, for the clauses of the note.

    `ratios` are the throughputs of the method / vanilla's by load, ascending.
    Empty if a method pays at larger loads only.
    """
    result = break_even(ratios)
    loads = [*ratios]
    if result.load == 0 and any(ratio.value > 1 for ratio in ratios.values()):
        return {}
    interval = result.interval
    if interval and interval.low == 0 and math.isinf(interval.high):
        return {"between": f"between {loads[0]} and {loads[-1]} requests at once"}
    interval_text = _interval_text(interval) if interval else None
    if result.load == 0:
        return {"nowhere": result.first_slower, "interval": interval_text}
    if math.isinf(result.load):
        return {"everywhere": result.last_faster, "interval": interval_text}
    return {
        "crossing": result.load,
        "last_faster": result.last_faster,
        "first_slower": result.first_slower,
        "interval": interval_text,
    }


def _interval_text(interval: Interval) -> str | None:
    """The ends of an interval of loads. An end of 0 or infinity lies beyond those measured."""
    if interval.low == interval.high:  # both beyond the measured loads, on one side
        return None
    if interval.low == 0:
        return f"at most {interval.high:.3g}"
    if math.isinf(interval.high):
        return f"at least {interval.low:.3g}"
    return f"{interval.low:.3g} to {interval.high:.3g}"
