"""Speedup against mean accepted tokens, with the limit that memory sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.bootstrap import Estimate
from specbench.report.formats import interval_of
from specbench.report.plots.style import (
    EDGE,
    FAINT,
    INK,
    LINE,
    Look,
    Plot,
    frame,
    looks,
    panels,
    points,
    tiles,
)
from specbench.report.report import Report
from specbench.report.results import MEAN, MethodResults, Task

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
    texts = []
    for panel in panels(report.results):
        for method in panel.run.methods:
            speedup, mat, cost = method.overall.speedup, method.overall.mat, method.cost
            if method.method == BASELINE or not isinstance(speedup, Estimate):
                continue
            if isinstance(mat, Estimate):
                bound = ""
                if isinstance(cost.limit, Estimate) and isinstance(cost.mat, Estimate):
                    bound = f", limit {cost.limit.value:.2f} at {cost.mat.value:.2f} tokens"
                texts.append(
                    f"{panel.title}, {method.label}: {mat.value:.2f} tokens per step, "
                    f"{speedup.value:.2f} times as fast{bound}"
                )
    if not texts:
        return None
    return Plot(
        name="speedup_by_mat",
        title=_TITLE,
        alt=f"Scatter plot. {'; '.join(texts)}.",
        caption="Large points are means over the tasks with their intervals (of speedups: "
        f"{report.results.scope}), small ones the tasks. "
        "If drafting and wide steps were free, points would be on the dashed line, where the "
        "speedup equals the accepted tokens; the distance below it is their cost."
        + (_MEMORY if _has_limits(report) else ""),
        draw=lambda: _draw(report),
    )


def _has_limits(report: Report) -> bool:
    return any(
        isinstance(method.cost.limit, Estimate)
        for block in report.results.blocks
        for method in block.methods
        if method.method != BASELINE
    )


def _draw(report: Report) -> Figure:
    found = panels(report.results)
    shown = {m: look for m, look in looks(report.results).items() if m != BASELINE}
    words, handles = (_TITLE, report.results.caption), points(shown.values(), has_line=False)
    drawn, every_axes = tiles(*words, len(found), most_columns=2, height=3.6, handles=handles)
    for axes, panel in zip(every_axes, found, strict=False):
        for method in panel.run.methods:
            if method.method in shown:
                _draw_method(axes, method, report.results.tasks, look=shown[method.method])
        _draw_equality(axes)
        x, y = "mean accepted tokens (per step)", "speedup (times)"
        frame(axes, panel.title, x=x, y=y, grid="both")
    return drawn


def _draw_method(axes: Axes, method: MethodResults, tasks: tuple[Task, ...], *, look: Look) -> None:
    small_mark = "." if look.is_numbered else look.marker
    for task, result in zip(tasks, method.tasks, strict=True):
        speedup, mat = result.speedup, result.mat
        if task.name != MEAN and isinstance(speedup, Estimate) and isinstance(mat, Estimate):
            small: dict[str, Any] = {"markersize": 4, "alpha": 0.55, "markeredgewidth": 0}
            axes.plot(mat.value, speedup.value, marker=small_mark, color=look.colour, **small)
    speedup, mat = method.overall.speedup, method.overall.mat
    if not (isinstance(speedup, Estimate) and isinstance(mat, Estimate)):
        return
    x, y = mat.value, speedup.value
    across, along = interval_of(mat), interval_of(speedup)
    axes.errorbar(
        x,
        y,
        xerr=[[x - across.low], [across.high - x]] if across else None,
        yerr=[[y - along.low], [along.high - y]] if along else None,
        color=EDGE,
        elinewidth=0.8,
        zorder=4,
    )
    axes.plot(x, y, linestyle="", markersize=9, zorder=5, **look.point)
    limit, whole = method.cost.limit, method.cost.mat
    if isinstance(limit, Estimate) and isinstance(whole, Estimate):
        ends = [x, whole.value], [y, limit.value]
        axes.plot(*ends, color=look.colour, linewidth=1, linestyle=":")
        bar: dict[str, Any] = {"markersize": 18, "markeredgewidth": 2.5}
        axes.plot(whole.value, limit.value, "_", color=look.colour, **bar)


def _draw_equality(axes: Axes) -> None:
    """The dashed line, and vanilla where both are 1, in the range of the points."""
    axes.plot(1, 1, "h", color=INK, markersize=5)
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    end = max(right, top)
    axes.plot([0, end], [0, end], **LINE)
    axes.set_xlim(0.8, right * 1.02)
    axes.set_ylim(0, top * 1.12)
    exit_at = min(top * 1.12, right * 1.02)
    is_steep = exit_at < 0.55 * right  # there is room right of the line, else above it
    words = axes.annotate(
        "dashed: as fast as tokens are accepted",
        (exit_at, exit_at) if is_steep else (0.0, 1.0),
        xycoords="data" if is_steep else "axes fraction",
        xytext=(5, -4),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=FAINT,
    )
    words.set_in_layout(False)


PLOTS = ((3, speedup_by_mat),)
