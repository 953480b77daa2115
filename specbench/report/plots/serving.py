"""Plot servers over their loads: throughput against speed (the frontier), and speedup."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.log.run import Load, loads_of
from specbench.report.formats import at_least, interval_of
from specbench.report.plots.point_names import BESIDE, Mark, legend_of, name_lines
from specbench.report.plots.style import LINE, Look, Plot, frame, looks, tiles
from specbench.report.results import Report, Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FRONTIER = "Throughput against the speed of a request"
_SPEEDUP = "Speedup by load"


class _Numbers(NamedTuple):
    """The two numbers of a method at one load, which make a point."""

    x: Value
    """The number along the horizontal axis."""
    y: Value
    """The number along the vertical axis."""


@dataclass(frozen=True, slots=True)
class _Point:
    """A method at one load."""

    load: Load
    """The requested load."""
    x: float
    """The number along the horizontal axis."""
    y: Estimate
    """The number along the vertical axis, which may have an interval."""


_Lines = dict[str, list[_Point]]
"""Points by method, in the order of the loads."""


def frontier(report: Report) -> Plot | None:
    """Return the plot with a line per method over its loads, or None if there are no `_lines`."""

    def numbers_of(run: RunMetrics, method: str, temperature: float) -> _Numbers:
        """Return the tokens/s of a single request, and of all requests together."""
        tokens_per_s = run.pooled(method, temperature).tokens_per_s
        return _Numbers(tokens_per_s, run.serving[method, temperature].output_throughput)

    lines = _lines(report, numbers_of)
    if not lines:
        return None
    return Plot(
        name="frontier",
        title=_FRONTIER,
        alt=f"Lines. {_described(report, lines, 'tokens/s of all requests')}.",
        caption="Each point is a load. Points further right are faster for each user, points "
        "further up are cheaper for the operator. The line of a better method lies further to the "
        "upper right.",
        draw=lambda: _draw_frontier(report, lines),
    )


def speedup_by_load(report: Report) -> Plot | None:
    """Return the plot of each method's speedup by requests at once.

    A load of a server is a number of requests at once, or a rate of requests per second. The result
    is None if no method has a speedup at two numbers of requests at once, or if several runs had
    servers.
    """

    def numbers_of(run: RunMetrics, method: str, temperature: float) -> _Numbers:
        """Return the requests at once of a run with one load, and the method's speedup there."""
        num_at_once = loads_of(run.info.spec.values)[0].concurrency  # the only load
        # The speedup is the mean over tasks.
        return _Numbers(Estimate(float(num_at_once)), run.overall[method, temperature].speedup)

    lines: _Lines = {}  # points by method, in the order of the loads
    for method, all_points in _lines(report, numbers_of).items():
        # A load that is a rate of requests has 0 requests at once.
        points_at_once = [point for point in all_points if point.x > 0]
        if method != BASELINE and len(points_at_once) > 1:
            lines[method] = points_at_once
    if not lines:
        return None
    return Plot(
        name="speedup_by_load",
        title=_SPEEDUP,
        alt=f"Lines. {_described(report, lines, 'times as fast')}.",
        caption="Below the dashed line, speculation costs more than it saves. A busy server has no "
        "compute to spare for drafts.",
        draw=lambda: _draw_speedup(report, lines),
    )


def _lines(report: Report, numbers_of: Callable[[RunMetrics, str, float], _Numbers]) -> _Lines:
    """Return the points of each method's line at the lowest temperature, in the order of the loads.

    There are no lines without servers, or if several runs had servers. `numbers_of(run, method,
    temperature)` returns the numbers along both axes. A source has the metrics of a run, usually at
    one of its loads.
    """
    # `serving` is empty without servers.
    served_sources = [source for source in report.sources if source.metrics.serving]
    # The folder of each run, or its id if it was not read from a folder.
    distinct_runs = {source.run.path or source.info.id for source in served_sources}
    if len(distinct_runs) > 1:
        return {}  # a line must not mix runs
    # The label, colour and marker of each method. Methods without a number on any task may lack a
    # look.
    looks_by_method = looks(report.labels)
    lines: _Lines = defaultdict(list)  # points by method
    for source in served_sources:
        # A point for each method at the load of the source.
        for method, point in _points(source, numbers_of):
            if method in looks_by_method:
                lines[method].append(point)
    return lines


def _points(
    source: Source, numbers_of: Callable[[RunMetrics, str, float], _Numbers]
) -> Iterable[tuple[str, _Point]]:
    """Yield each method on a server with its point, at the lowest temperature of a run at one load.

    `numbers_of(run, method, temperature)` returns the numbers along both axes. Methods that lack
    one of the two are left out. There are no points if the source (a run) has no load, or several.
    A load is a number of requests at once, or of requests per second.
    """
    metrics = source.metrics  # the metrics of the run
    loads = loads_of(source.info.spec.values)  # the loads that the run's settings ask for
    if len(loads) != 1:
        return
    temperature = metrics.temperatures[0]  # the lowest
    for method in metrics.methods:
        if (method, temperature) not in metrics.serving:  # the method did not run on a server
            continue
        x, y = numbers_of(metrics, method, temperature)
        if isinstance(x, Estimate) and isinstance(y, Estimate):  # neither is missing
            yield method, _Point(loads[0], x.value, y)  # y with its interval


def _described(report: Report, lines: _Lines, unit: str) -> str:
    """Return the numbers of all points in words, by method. `unit` is their unit."""
    all_looks = looks(report.labels)  # the label, colour and marker of each method
    texts = []
    for method, line in lines.items():
        numbers = [f"{at_least(3, point.y.value)} {unit} at {point.load.text}" for point in line]
        texts.append(f"{all_looks[method].label}: {', '.join(numbers)}")
    return "; ".join(texts)


def _draw_frontier(report: Report, lines: _Lines) -> Figure:
    """Return the figure with tokens/s of all requests (y) over tokens/s of one request (x).

    `lines` are the points of each method. Each point is a load, which is written beside it.
    """
    figure, axes = _axes(report, lines, _FRONTIER)  # with a title and a legend
    look_by_method = _looks(report, lines)  # label, colour and marker
    for method, look in look_by_method.items():
        _draw_line(axes, lines[method], look)
    _name_loads(axes, [point for method in look_by_method for point in lines[method]])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    x_label = "tokens/s of one request (numbers at points: requests at once, or per second)"
    frame(axes, x=x_label, y="tokens/s of all requests", grid="both")
    name_lines(figure, axes, look_by_method, _marks(lines), BESIDE)
    return figure


def _draw_speedup(report: Report, lines: _Lines) -> Figure:
    """Return the figure with the speedup (y) over requests at once (x), and a line at 1.

    `lines` are the points of each method. `point.x` is a number of requests, and `point.y` is a
    speedup, whose interval is drawn.
    """
    figure, axes = _axes(report, lines, _SPEEDUP)  # with a title and a legend
    look_by_method = _looks(report, lines)  # label, colour and marker
    for method, look in look_by_method.items():
        _draw_line(axes, lines[method], look)
        for point in lines[method]:
            if interval := interval_of(point.y):
                ends = [interval.low, interval.high]
                axes.plot([point.x, point.x], ends, color=look.colour, linewidth=0.9)
    axes.axhline(1, **LINE)
    ticks = sorted({point.x for line in lines.values() for point in line})  # requests at once
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    frame(axes, x="requests at once", y="speedup (times)", grid="both")
    name_lines(figure, axes, look_by_method, _marks(lines))
    return figure


def _looks(report: Report, lines: _Lines) -> dict[str, Look]:
    """Return the looks of the methods that have a line, in the order of the report."""
    return {method: look for method, look in looks(report.labels).items() if method in lines}


def _axes(report: Report, lines: _Lines, title: str) -> tuple[Figure, Axes]:
    """Return a figure with one panel, and a legend of the methods."""
    handles = legend_of(_looks(report, lines))
    figure, (axes,) = tiles(title, report.caption, 1, height=4.0, spare=0, handles=handles)
    return figure, axes


def _draw_line(axes: Axes, line: Sequence[_Point], look: Look) -> None:
    xs = [point.x for point in line]
    ys = [point.y.value for point in line]
    axes.plot(xs, ys, linewidth=1.2, **look.point)


def _marks(lines: _Lines) -> dict[str, list[Mark]]:
    return {
        method: [Mark(point.x, point.y.value) for point in line] for method, line in lines.items()
    }


def _name_loads(axes: Axes, points: Sequence[_Point]) -> None:
    """Write the load beside each point."""
    axes.set_ylim(0, 1.1 * max(point.y.value for point in points))
    for point in points:
        label = str(point.load.concurrency or f"{point.load.request_rate:g}/s")
        axes.annotate(
            label,
            (point.x, point.y.value),
            xytext=(5, 4),
            textcoords="offset points",
            fontsize=7.5,
        )


PLOTS = ((10, frontier), (11, speedup_by_load))
