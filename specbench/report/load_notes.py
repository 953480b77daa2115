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

    `runs` has each load of a run as one of its own.
    """
    parts_by_run: dict[str, dict[int, RunMetrics]] = {}  # by number of requests at once
    for run in runs:
        loads = loads_of(run.info.spec.values)
        if run.info.servers and len(loads) == 1 and loads[0].concurrency:
            parts_by_run.setdefault(run.info.id, {})[loads[0].concurrency] = run
    for parts in parts_by_run.values():
        if len(parts) > 1:
            yield from _notes_of_run({load: parts[load] for load in sorted(parts)})


def _notes_of_run(parts: dict[int, RunMetrics]) -> Iterator[Note]:
    """The notes of one run, whose parts are by the number of requests at once."""
    first = next(iter(parts.values()))
    for method, temperature in first.serving:
        if method == BASELINE:
            continue
        ratios: dict[int, Estimate] = {}
        lines: list[Numbers] = []
        for load, part in parts.items():
            serving = part.serving.get((method, temperature))
            if serving is None or not isinstance(serving.throughput_ratio, Estimate):
                continue
            ratios[load] = serving.throughput_ratio
            ttft = _ttft_change(serving, part.serving.get((BASELINE, temperature)))
            lines.append({"ratio": serving.throughput_ratio.value, "load": load, "ttft": ttft})
        if len(ratios) > 1:
            numbers = {"method": method, "temperature": temperature, "loads": lines}
            yield make_note(
                "loads", first.info, **numbers, **_verdict(break_even(ratios), [*ratios])
            )


def _ttft_change(serving: ServingMetrics, vanilla: ServingMetrics | None) -> str | None:
    """The change of the time to the first token against vanilla's, such as "+10 %"."""
    if vanilla is None:
        return None
    ours, theirs = serving.ttft.mean, vanilla.ttft.mean
    if not isinstance(ours, Estimate) or not isinstance(theirs, Estimate) or not theirs.value:
        return None
    return f"{ours.value / theirs.value - 1:+.0%}".replace("%", " %")


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
