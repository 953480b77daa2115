"""Plot of speedup against mean accepted tokens, with the bandwidth bound of each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.report.plots import style
from specbench.report.plots.style import EDGE, INK, LINE, Look, Plot
from specbench.report.results import MEAN, MethodResults, Report, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "Speedup against mean accepted tokens"
_ABOUT_BOUND = (
    " A dotted line leads to the bandwidth bound, the speedup if a step took only the time to read "
    "the weights of target and drafter; it is at the MAT of the steps of all tasks."
)


class _Point(NamedTuple):
    """A speedup at a MAT."""

    mat: Estimate
    """Mean accepted tokens."""
    speedup: Estimate
    """Over vanilla: measured, or the bandwidth bound."""


def _point(mat: Value, speedup: Value) -> _Point | None:
    """The point, or None if either number is missing."""
    if isinstance(mat, Estimate) and isinstance(speedup, Estimate):
        return _Point(mat, speedup)
    return None


def _mean_of(method: MethodResults) -> _Point | None:
    return _point(method.overall.mat, method.overall.speedup)


def _bound_of(method: MethodResults) -> _Point | None:
    return _point(method.cost.mat, method.cost.bound)


def speedup_by_mat(report: Report) -> Plot | None:
    """A point per method and task; None if no method has a speedup."""
    texts = []
    about_bound = ""
    for title, run in report.panels:
        for method in run.methods:
            mean = _mean_of(method)
            if method.method == BASELINE or mean is None:
                continue
            text = (
                f"{title}, {method.label}: {mean.mat.value:.2f} tokens per step, "
                f"{mean.speedup.value:.2f} times as fast"
            )
            if bound := _bound_of(method):
                about_bound = _ABOUT_BOUND
                text += (
                    f", bandwidth bound {bound.speedup.value:.2f} at {bound.mat.value:.2f} tokens"
                )
            texts.append(text)
    if not texts:
        return None
    return Plot(
        name="speedup_by_mat",
        title=_TITLE,
        alt=f"Scatter plot. {'; '.join(texts)}.",
        caption="Large points are means over the tasks with their intervals (of speedups: "
        f"{report.scope}), small ones the tasks. "
        "If drafting and wide steps were free, points would be on the dashed line, where the "
        f"speedup equals the accepted tokens; the distance below it is their cost.{about_bound}",
        draw=lambda: _draw(report),
    )


def _draw(report: Report) -> Figure:
    from matplotlib.lines import Line2D

    shown = {name: look for name, look in style.looks(report.labels).items() if name != BASELINE}
    equality = Line2D([], [], label="as fast as tokens are accepted", **LINE)
    drawn, axes_list = style.tiles(
        _TITLE,
        report.caption,
        len(report.panels),
        height=3.6,
        handles=[*style.points(shown.values(), has_line=False), equality],
    )
    for axes, (title, run) in zip(axes_list, report.panels, strict=False):
        for method in run.methods:
            if look := shown.get(method.method):
                _draw_tasks(axes, method, report.tasks, look)
                _draw_mean(axes, method, look)
        _draw_equality(axes)
        x, y = "mean accepted tokens (per step)", "speedup (times)"
        style.frame(axes, title, x=x, y=y, grid="both")
    return drawn


def _draw_tasks(axes: Axes, method: MethodResults, tasks: Sequence[Task], look: Look) -> None:
    """A small point per task."""
    for task, result in zip(tasks, method.tasks, strict=True):
        point = _point(result.mat, result.speedup)
        if task.name == MEAN or point is None:
            continue
        axes.plot(
            point.mat.value,
            point.speedup.value,
            marker="." if look.is_numbered else look.marker,
            color=look.colour,
            markersize=4,
            alpha=0.55,
            markeredgewidth=0,
        )


def _draw_mean(axes: Axes, method: MethodResults, look: Look) -> None:
    """A large point with its intervals, and a dotted line to the bandwidth bound."""
    mean = _mean_of(method)
    if mean is None:
        return
    mat = mean.mat.value
    speedup = mean.speedup.value
    errors = {"xerr": style.error(mean.mat), "yerr": style.error(mean.speedup)}
    axes.errorbar(mat, speedup, **errors, color=EDGE, elinewidth=0.8, zorder=4)
    axes.plot(mat, speedup, linestyle="", markersize=9, zorder=5, **look.point)
    if bound := _bound_of(method):
        bound_mat = bound.mat.value
        bound_speedup = bound.speedup.value
        mats = [mat, bound_mat]
        speedups = [speedup, bound_speedup]
        axes.plot(mats, speedups, color=look.colour, linewidth=1, linestyle=":")
        bar: dict[str, Any] = {"markersize": 18, "markeredgewidth": 2.5}
        axes.plot(bound_mat, bound_speedup, "_", color=look.colour, **bar)


def _draw_equality(axes: Axes) -> None:
    """The dashed line, and vanilla where both are 1, in the range of the points."""
    axes.plot(1, 1, "h", color=INK, markersize=5)
    right = axes.get_xlim()[1]
    top = axes.get_ylim()[1]
    end = max(right, top)
    axes.plot([0, end], [0, end], **LINE)
    axes.set_xlim(0.8, right * 1.02)
    axes.set_ylim(0, top * 1.12)


PLOTS = ((3, speedup_by_mat),)
