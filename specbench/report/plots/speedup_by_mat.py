"""Plot speedup against mean accepted tokens, with the bandwidth bound of each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.report.formats import interval_of
from specbench.report.plots import style
from specbench.report.plots.point_names import Mark, legend_of, name_methods
from specbench.report.plots.style import EDGE, INK, LINE, Look, Plot
from specbench.report.results import MEAN, MethodResults, Report, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "Speedup against mean accepted tokens"
_ABOUT_BOUND = (
    " A dotted line leads to the bandwidth bound: the speedup that a method would have if a step "
    "took only the time to read the weights of target and drafter. The bound is drawn at the MAT "
    "over the steps of all tasks."
)
_BAR_MARKS = 9
"""The number of points along the bar of an interval that names should not cover."""


class _Point(NamedTuple):
    """A speedup at a MAT."""

    mat: Estimate
    """The mean accepted tokens."""
    speedup: Estimate
    """The speedup over vanilla, which was measured or is the bandwidth bound."""


def _point(mat: Value, speedup: Value) -> _Point | None:
    """Return the point, or None if either number is missing."""
    if isinstance(mat, Estimate) and isinstance(speedup, Estimate):
        return _Point(mat, speedup)
    return None


def _mean_of(method: MethodResults) -> _Point | None:
    return _point(method.overall.mat, method.overall.speedup)


def _bound_of(method: MethodResults) -> _Point | None:
    return _point(method.cost.mat, method.cost.bound)


def speedup_by_mat(report: Report) -> Plot | None:
    """Return the plot of speedup over MAT, with a point for each method and task.

    It is None if no method except vanilla has both means.
    """
    texts = []  # the means of each method in words, for readers who cannot see the plot
    about_bound = ""  # is added to the caption if a method has a bandwidth bound
    # A heading with the run and temperature, and the results of the run there.
    for title, run in report.panels:
        for method in run.methods:
            mean = _mean_of(method)  # MAT and speedup over all tasks, or None if one is missing
            if method.method == BASELINE or mean is None:
                continue
            method_text = (
                f"{title}, {method.label}: {mean.mat.value:.2f} tokens per step, "
                f"{mean.speedup.value:.2f} times as fast"
            )
            # The speedup that the memory's bandwidth allows, and its MAT, or None if unknown.
            if bound := _bound_of(method):
                about_bound = _ABOUT_BOUND
                method_text += (
                    f", bandwidth bound {bound.speedup.value:.2f} at {bound.mat.value:.2f} tokens"
                )
            texts.append(method_text)
    if not texts:
        return None
    return Plot(
        name="speedup_by_mat",
        title=_TITLE,
        alt=f"Scatter plot. {'; '.join(texts)}.",
        # `scope` says what the intervals cover, such as "over prompts and 3 passes".
        caption="Small points are tasks. Large points are means over the tasks, with their "
        f"intervals (for speedups: {report.scope}). On the dashed line, the speedup equals the "
        "accepted tokens. Points would be on this line if drafting and wide steps were free. The "
        f"distance below it is their cost.{about_bound}",
        draw=lambda: _draw(report),
    )


def _draw(report: Report) -> Figure:
    """Return the figure with axes per run and temperature: the speedup (y) of methods over MAT (x).

    A method has a small point per task, and a large point for its mean over the tasks. A line shows
    where the speedup equals the MAT.
    """
    from matplotlib.lines import Line2D

    looks = style.looks(report.labels)  # the label, colour and marker of each method
    drafting_looks = {method: look for method, look in looks.items() if method != BASELINE}
    equality = Line2D([], [], label="as fast as tokens are accepted", **LINE)  # for the legend
    figure, axes_list = style.tiles(
        _TITLE,
        report.caption,  # the figure's subtitle
        len(report.panels),  # a panel is a run at a temperature
        height=3.6,  # the height of the axes in inches
        handles=[  # entries of the legend
            *legend_of(drafting_looks, has_line=False),
            equality,
        ],
    )
    # Axes beyond the panels only fill the last row, and stay hidden.
    for axes, (title, run) in zip(axes_list, report.panels, strict=False):
        for method in run.methods:
            # None for vanilla, and for a method that `report.labels` leaves out: without numbers
            if look := drafting_looks.get(method.method):
                _draw_tasks(axes, method, report.tasks, look)
                _draw_mean(axes, method, look)
        _draw_equality(axes)  # the line, and vanilla's mark
        x_label = "mean accepted tokens (per step)"
        style.frame(axes, title, x=x_label, y="speedup (times)", grid="both")
    # Names are placed last, where they cover no mean, no interval and no other name.
    for axes, (_, run) in zip(axes_list, report.panels, strict=False):
        means = {  # by method, without those whose MAT or speedup is missing
            method.method: Mark(mean.mat.value, mean.speedup.value)
            for method in run.methods
            if method.method in drafting_looks and (mean := _mean_of(method))
        }
        # Points on the bars of intervals, which names should not cover either.
        marks_on_bars = [mark for method in run.methods for mark in _marks_on_bars(method)]
        name_methods(figure, axes, drafting_looks, means, marks_on_bars)
    return figure


def _marks_on_bars(method: MethodResults) -> list[Mark]:
    """Return points along the bars that show the intervals of a method's mean MAT and speedup.

    Names of methods should not cover these points. A number without an interval has no points. The
    result is empty if a mean is missing.
    """
    mean = _mean_of(method)  # MAT and speedup, or None if one is missing
    if mean is None:
        return []
    mat, speedup = mean.mat.value, mean.speedup.value
    marks = []
    if interval := interval_of(mean.mat):
        marks += [Mark(x, speedup) for x in np.linspace(interval.low, interval.high, _BAR_MARKS)]
    if interval := interval_of(mean.speedup):
        marks += [Mark(mat, y) for y in np.linspace(interval.low, interval.high, _BAR_MARKS)]
    return marks


def _draw_tasks(axes: Axes, method: MethodResults, tasks: Sequence[Task], look: Look) -> None:
    """Draw a small point for each task with both numbers, the speedup (y) over the MAT (x)."""
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
    """Draw a method's mean over the tasks, the speedup (y) over the MAT (x), with both intervals.

    If the method's bandwidth bound is known, a dotted line leads to a bar at the bound. `look` has
    the method's colour and marker.
    """
    mean = _mean_of(method)  # MAT and speedup, or None if one is missing
    if mean is None:
        return
    mat = mean.mat.value
    speedup = mean.speedup.value
    # The distances to the ends of the intervals.
    errors = {"xerr": style.error(mean.mat), "yerr": style.error(mean.speedup)}
    axes.errorbar(mat, speedup, **errors, color=EDGE, elinewidth=0.8, zorder=4)
    axes.plot(mat, speedup, linestyle="", markersize=9, zorder=5, **look.point)
    # The speedup that the memory's bandwidth allows, at the MAT of the steps of all tasks.
    if bound := _bound_of(method):
        bound_mat = bound.mat.value
        bound_speedup = bound.speedup.value
        line_mats = [mat, bound_mat]
        line_speedups = [speedup, bound_speedup]
        axes.plot(line_mats, line_speedups, color=look.colour, linewidth=1, linestyle=":")
        bar_style: dict[str, Any] = {"markersize": 18, "markeredgewidth": 2.5}
        # "_" is a horizontal bar
        axes.plot(bound_mat, bound_speedup, "_", color=look.colour, **bar_style)


def _draw_equality(axes: Axes) -> None:
    """Draw the dashed line on which speedup equals MAT, and vanilla's mark at (1, 1)."""
    axes.plot(1, 1, "h", color=INK, markersize=5)  # "h" is a hexagon
    right = axes.get_xlim()[1]
    top = axes.get_ylim()[1]
    end = max(right, top)
    axes.plot([0, end], [0, end], **LINE)
    axes.set_xlim(0.8, right * 1.02)  # a MAT is 1 or more
    axes.set_ylim(0, top * 1.12)  # room for names


PLOTS = ((3, speedup_by_mat),)
