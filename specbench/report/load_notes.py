"""The note on loads: at how many requests at once a method of a server pays."""

import math
from collections.abc import Iterator, Sequence

from specbench.analysis.break_even import BreakEven, break_even
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.serving import ServingMetrics
from specbench.analysis.stats.estimates import Estimate, Interval
from specbench.log.run import loads_of
from specbench.report.texts import Note, Numbers, make_note


def load_notes(runs: Sequence[RunMetrics]) -> Iterator[Note]:
    """A note for each method of a run that was measured at several numbers of requests at once.

    `runs` has an element for each load of such a run.
    """
    # id of a run -> number of requests at once -> the run at this load
    runs_by_id: dict[str, dict[int, RunMetrics]] = {}
    for run in runs:
        loads = loads_of(run.info.spec.values)
        if run.info.servers and len(loads) == 1 and loads[0].concurrency:
            runs_by_id.setdefault(run.info.id, {})[loads[0].concurrency] = run
    for runs_by_load in runs_by_id.values():
        if len(runs_by_load) > 1:
            yield from _notes_of_run({load: runs_by_load[load] for load in sorted(runs_by_load)})


def _notes_of_run(runs_by_load: dict[int, RunMetrics]) -> Iterator[Note]:
    """The notes of one run, which is given by the number of requests at once."""
    lowest_load = next(iter(runs_by_load.values()))
    for method, temperature in lowest_load.serving:
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
            verdict = _verdict(break_even(ratios), [*ratios])
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


def _verdict(result: BreakEven, loads: Sequence[int]) -> Numbers:
    """The break-even load in words, for the clauses of the note. `loads` are those measured."""
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
