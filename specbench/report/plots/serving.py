"""Plots of servers over their loads: the frontier of throughput and speed, and the speedup."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.log.run import Load, loads_of
from specbench.report.formats import interval_of
from specbench.report.plots.style import LINE, Plot, frame, looks, points, tiles
from specbench.report.results import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FRONTIER = "Throughput against the speed of a request"
_SPEEDUP = "Speedup by load"


@dataclass(frozen=True, slots=True)
class _Point:
    """A method at one load. `y` may have an interval."""

    load: Load
    x: float
    y: Estimate


_Lines = dict[str, list[_Point]]
"""Points by method, in the order of the loads."""


def frontier(report: Report) -> Plot | None:
    """A line a method over its loads; None without a server."""

    def point(run: RunMetrics, key: tuple[str, float]) -> tuple[Value, Value]:
        return run.pooled(*key).tokens_per_s, run.serving[key].output_throughput

    if not (found := _lines(report, point)):
        return None
    return Plot(
        name="frontier",
        title=_FRONTIER,
        alt=f"Lines. {_texts(report, found, 'tokens/s of all requests')}.",
        caption="A point is a load. Right is faster for each user, up is cheaper for who serves "
        "them: a method is better where its line lies further to the upper right.",
        draw=lambda: _draw(
            report,
            found,
            _FRONTIER,
            x="tokens/s of one request (at points: requests at once, or each second)",
            y="tokens/s of all requests",
        ),
    )


def speedup_by_load(report: Report) -> Plot | None:
    """The speedup of each method by requests at once; None if there is only one load."""

    def point(run: RunMetrics, key: tuple[str, float]) -> tuple[Value, Value]:
        at_once = loads_of(run.info.spec.values)[0].concurrency
        return Estimate(float(at_once)), run.overall[key].speedup

    shown = {
        method: [one for one in own if one.x]
        for method, own in _lines(report, point).items()
        if method != BASELINE and sum(one.x > 0 for one in own) > 1
    }
    if not shown:
        return None
    return Plot(
        name="speedup_by_load",
        title=_SPEEDUP,
        alt=f"Lines. {_texts(report, shown, 'times as fast')}.",
        caption="Below the dashed line, speculation costs more than it saves: a busy server has no "
        "idle arithmetic for drafts.",
        draw=lambda: _draw(
            report, shown, _SPEEDUP, x="requests at once", y="speedup (times)", is_speedup=True
        ),
    )


def _lines(
    report: Report, point: Callable[[RunMetrics, tuple[str, float]], tuple[Value, Value]]
) -> _Lines:
    """The points of every method at the lowest temperature, load by load."""
    found: _Lines = defaultdict(list)
    known = looks(report.labels)
    served = [one for one in report.sources if one.metrics.serving]
    if len({one.run.path or one.info.id for one in served}) > 1:
        return {}  # a line is of one run
    for source in served:
        metrics, loads = source.metrics, loads_of(source.info.spec.values)
        for method in metrics.methods:
            key = method, metrics.temperatures[0]
            if len(loads) != 1 or method not in known or key not in metrics.serving:
                continue
            x, y = point(metrics, key)
            if isinstance(x, Estimate) and isinstance(y, Estimate):
                found[method].append(_Point(loads[0], x.value, y))
    return found


def _texts(report: Report, lines: _Lines, unit: str) -> str:
    known = looks(report.labels)
    return "; ".join(
        f"{known[method].label}: "
        + ", ".join(f"{one.y.value:.3g} {unit} at {one.load.text}" for one in own)
        for method, own in lines.items()
    )


def _draw(
    report: Report, lines: _Lines, title: str, *, x: str, y: str, is_speedup: bool = False
) -> Figure:
    shown = {method: look for method, look in looks(report.labels).items() if method in lines}
    about = title, report.caption, 1
    drawn, (axes,) = tiles(*about, height=4.0, spare=0, handles=points(shown.values()))
    for method, look in shown.items():
        own = lines[method]
        axes.plot([one.x for one in own], [one.y.value for one in own], linewidth=1.2, **look.point)
        for one in own:
            if is_speedup and (span := interval_of(one.y)):
                axes.plot([one.x, one.x], [span.low, span.high], color=look.colour, linewidth=0.9)
    if is_speedup:
        axes.axhline(1, **LINE)
        ticks = sorted({one.x for own in lines.values() for one in own})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    else:
        _name_loads(axes, [one for method in shown for one in lines[method]])
        axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    frame(axes, x=x, y=y, grid="both")
    return drawn


def _name_loads(axes: Axes, points: Sequence[_Point]) -> None:
    """Write the load beside each point."""
    axes.set_ylim(0, 1.1 * max(one.y.value for one in points))
    for one in points:
        label = str(one.load.concurrency or f"{one.load.request_rate:g}/s")
        at = (one.x, one.y.value)
        axes.annotate(label, at, xytext=(5, 4), textcoords="offset points", fontsize=7.5)


PLOTS = ((10, frontier), (11, speedup_by_load))
