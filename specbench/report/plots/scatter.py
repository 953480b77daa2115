"""Speedup against mean accepted tokens, with the limit that memory sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.bootstrap import Estimate, Value
from specbench.report.plots import style
from specbench.report.plots.style import EDGE, INK, LINE, Look, Plot
from specbench.report.results import MEAN, MethodResults, Report, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "Speedup against mean accepted tokens"
_MEMORY = (
    " A dotted line leads to the limit that memory sets, a step that takes only the time to read "
    "the weights of target and drafter: it is at the MAT of the steps of all tasks."
)


def speedup_by_mat(report: Report) -> Plot | None:
    """A point per method and task; None if no method has a speedup."""
    texts, memory = [], ""
    for title, run in report.panels:
        for method in run.methods:
            point = _point(method.overall.mat, method.overall.speedup)
            if method.method == BASELINE or not point:
                continue
            bound = ""
            if limit := _point(method.cost.mat, method.cost.limit):
                bound = f", limit {limit[1].value:.2f} at {limit[0].value:.2f} tokens"
                memory = _MEMORY
            texts.append(
                f"{title}, {method.label}: {point[0].value:.2f} tokens per step, "
                f"{point[1].value:.2f} times as fast{bound}"
            )
    if not texts:
        return None
    return Plot(
        name="speedup_by_mat",
        title=_TITLE,
        alt=f"Scatter plot. {'; '.join(texts)}.",
        caption="Large points are means over the tasks with their intervals (of speedups: "
        f"{report.scope}), small ones the tasks. "
        "If drafting and wide steps were free, points would be on the dashed line, where the "
        f"speedup equals the accepted tokens; the distance below it is their cost.{memory}",
        draw=lambda: _draw(report),
    )


def _point(mat: Value, speedup: Value) -> tuple[Estimate, Estimate] | None:
    """Accepted tokens and the speedup or its limit; None if either is missing."""
    if isinstance(mat, Estimate) and isinstance(speedup, Estimate):
        return mat, speedup
    return None


def _draw(report: Report) -> Figure:
    from matplotlib.lines import Line2D

    found = report.panels
    shown = {m: look for m, look in style.looks(report.labels).items() if m != BASELINE}
    equality = Line2D([], [], label="as fast as tokens are accepted", **LINE)
    handles = [*style.points(shown.values(), has_line=False), equality]
    about = _TITLE, report.caption, len(found)
    drawn, every_axes = style.tiles(*about, height=3.6, handles=handles)
    for axes, (title, run) in zip(every_axes, found, strict=False):
        for method in run.methods:
            if method.method in shown:
                _draw_method(axes, method, report.tasks, look=shown[method.method])
        _draw_equality(axes)
        x, y = "mean accepted tokens (per step)", "speedup (times)"
        style.frame(axes, title, x=x, y=y, grid="both")
    return drawn


def _draw_method(axes: Axes, method: MethodResults, tasks: tuple[Task, ...], *, look: Look) -> None:
    small_mark = "." if look.is_numbered else look.marker
    for task, result in zip(tasks, method.tasks, strict=True):
        if task.name != MEAN and (point := _point(result.mat, result.speedup)):
            small: dict[str, Any] = {"markersize": 4, "alpha": 0.55, "markeredgewidth": 0}
            place = [one.value for one in point]
            axes.plot(*place, marker=small_mark, color=look.colour, **small)
    if not (mean := _point(method.overall.mat, method.overall.speedup)):
        return
    x, y = (one.value for one in mean)
    ends = dict(zip(("xerr", "yerr"), map(style.error, mean), strict=True))
    axes.errorbar(x, y, **ends, color=EDGE, elinewidth=0.8, zorder=4)
    axes.plot(x, y, linestyle="", markersize=9, zorder=5, **look.point)
    if limit := _point(method.cost.mat, method.cost.limit):
        at, most = (one.value for one in limit)
        axes.plot([x, at], [y, most], color=look.colour, linewidth=1, linestyle=":")
        bar: dict[str, Any] = {"markersize": 18, "markeredgewidth": 2.5}
        axes.plot(at, most, "_", color=look.colour, **bar)


def _draw_equality(axes: Axes) -> None:
    """The dashed line, and vanilla where both are 1, in the range of the points."""
    axes.plot(1, 1, "h", color=INK, markersize=5)
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    end = max(right, top)
    axes.plot([0, end], [0, end], **LINE)
    axes.set_xlim(0.8, right * 1.02)
    axes.set_ylim(0, top * 1.12)


PLOTS = ((3, speedup_by_mat),)
