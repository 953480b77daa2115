"""Plot speedups with a bar for each method, on which its tasks are points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.report.formats import interval_of
from specbench.report.layout import fold_label
from specbench.report.plots import style
from specbench.report.plots.style import INK, LINE, Look, Plot
from specbench.report.results import MethodResults, Report, RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "Speedup over vanilla by task"
_ERROR_BAR: dict[str, Any] = {"color": INK, "elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8}
_BESIDE_NUMBER = 0.17
"""Half the distance between a bar's number and its interval, if bars are 1 apart."""
_POINT: dict[str, Any] = {
    "marker": "o",
    "linestyle": "",
    "markersize": 4,
    "color": "white",
    "markeredgecolor": INK,
    "markeredgewidth": 0.8,
}
"""The style of a task's mark."""
_NUMBER: dict[str, Any] = {
    "textcoords": "offset points",
    "fontsize": 7.5,
    "va": "center",
    "zorder": 4,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5},
}
"""The style of a mean's text."""


def speedups(report: Report) -> Plot | None:
    """Return the plot with a bar per method, run and temperature, or None without any speedup."""
    # A panel is a run at a temperature, with its heading. `method.tasks` has a result for each
    # task, followed by their mean if there are several. Vanilla is left out.
    results = [
        task_result
        for _, run in report.panels
        for method in _drafting(run)
        for task_result in method.tasks
    ]
    if not any(isinstance(task_result.speedup, Estimate) for task_result in results):
        return None
    has_several_tasks = len(report.tasks) > 1
    # Words for the bars and points.
    bars = "means over the tasks" if has_several_tasks else "speedups"
    points = ". Points are tasks" if has_several_tasks else ""
    # The methods of each run and temperature in words, for readers who cannot see the plot.
    texts = [f"{title}, {_means_text(run)}" for title, run in report.panels]
    return Plot(
        name="speedup",
        title=_TITLE,
        alt=f"Bar chart of {bars}. By method: {'; '.join(texts)}.",
        # `scope` says what the intervals cover, such as "over prompts and 3 passes".
        caption=f"Bars are {bars} with their 95 % intervals ({report.scope}){points}. "
        "The dashed line is vanilla.",
        draw=lambda: _draw(report),
    )


def _means_text(run: RunResults) -> str:
    """Return the methods of a run and their mean speedups in words."""
    means = []
    for method in _drafting(run):
        speedup = method.tasks[-1].speedup  # the mean, or the speedup on the only task
        if isinstance(speedup, Estimate):
            means.append(f"{method.label} {speedup.value:.2f}")
    return ", ".join(means) or "no values"


def _drafting(run: RunResults) -> list[MethodResults]:
    """Return all methods except vanilla, in the order of the tables."""
    return [method for method in run.methods if method.method != BASELINE and method.tasks]


def _draw(report: Report) -> Figure:
    """Return the figure with axes per run and temperature, which have a bar per method from the
    top.
    """
    from matplotlib.lines import Line2D

    looks = style.looks(report.labels)  # the label, colour and marker of each method
    drafting_looks = {method: look for method, look in looks.items() if method != BASELINE}
    legend_styles = {"Vanilla": LINE}  # the style of each entry, by label
    if len(report.tasks) > 1:
        legend_styles = {"a task": _POINT, **legend_styles}
    figure, axes_list = style.tiles(
        _TITLE,
        report.caption,  # the figure's subtitle
        len(report.panels),  # a panel is a run at a temperature
        most_columns=1,
        height=0.8 + 0.29 * len(drafting_looks),  # the height of the axes in inches
        spare=0,  # no additional height of the figure
        handles=[Line2D([], [], label=label, **line) for label, line in legend_styles.items()],
    )
    # Axes beyond the panels only fill the last row, and stay hidden.
    for axes, (title, run) in zip(axes_list, report.panels, strict=False):
        # A method without any number may lack a look.
        methods = [method for method in _drafting(run) if method.method in drafting_looks]
        for rank, method in enumerate(methods):
            # The first bar is at height 0, and the others are below it.
            _draw_bar(axes, -rank, method, drafting_looks[method.method])
        _draw_frame(axes, [drafting_looks[method.method].label for method in methods])
        style.frame(axes, title, x="speedup (times)", grid="x")
    return figure


def _draw_bar(axes: Axes, y: int, method: MethodResults, look: Look) -> None:
    """Draw a method's mean speedup as a horizontal bar at height `y` (0, -1, … from the top).

    The interval and a point per task are in the lower half of the bar. The number is at its end, in
    the upper half, or in the middle if there is nothing in the lower half. If the mean is missing,
    the reason replaces the bar. `look` has the method's colour. `_ERROR_BAR`, `_POINT` and
    `_NUMBER` are styles for matplotlib.
    """
    from matplotlib.patheffects import withStroke

    # the last is the mean over the tasks, or the speedup on the only task
    *task_speedups, mean = [task_result.speedup for task_result in method.tasks]
    if isinstance(mean, Missing):
        reason = f" {style.drawable(mean.reason)}"
        axes.text(0, y, reason, color="0.35", fontsize=8, va="center")
        return
    axes.barh(y, mean.value, height=0.72, **look.bar)
    # The speedups on tasks, without missing ones.
    task_ratios = [speedup.value for speedup in task_speedups if isinstance(speedup, Estimate)]
    # The number is this far above the middle of the bar, and interval and points are below it.
    distance = _BESIDE_NUMBER if task_ratios or interval_of(mean) else 0
    if interval_of(mean):
        error_bar = axes.errorbar(mean.value, y - distance, xerr=style.error(mean), **_ERROR_BAR)
        for line in error_bar.get_children():
            # A white rim makes the line visible on the bar.
            line.set_path_effects([withStroke(linewidth=2.2, foreground="white")])
    axes.plot(task_ratios, [y - distance] * len(task_ratios), **_POINT)
    bar_end = (mean.value, y + distance)
    # The number is 3 typographic points to the right of the end.
    axes.annotate(f"{mean.value:.2f}", bar_end, (3, 0), **_NUMBER)


def _draw_frame(axes: Axes, labels: Sequence[str]) -> None:
    """Draw the line of vanilla, and the names of the methods beside their bars.

    The bars are at heights 0, -1 and so on. `labels` are the names from the top.
    """
    axes.axvline(1.0, zorder=3, **LINE)
    heights = [-i for i in range(len(labels))]
    axes.set_yticks(heights, ["\n".join(fold_label(label, 38)) for label in labels])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0.6 - max(1, len(labels)), 0.6)  # a bar ends at +/- 0.36
    axes.set_xlim(left=0)
    axes.margins(x=0.07)


PLOTS = ((1, speedups),)
