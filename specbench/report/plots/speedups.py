"""The plots of speedups: a bar a method with its tasks as points, and speedup against MAT."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from specbench.analysis.frames import value_or_none
from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.report.formats import interval_of
from specbench.report.plots import style
from specbench.report.plots.style import EDGE, INK, LINE, Look, Plot
from specbench.report.results import MEAN, MethodResults, Report, RunResults, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BY_TASK = "Speedup over vanilla by task"
_BY_MAT = "Speedup against mean accepted tokens"
_MEMORY = (
    " A dotted line leads to the limit that memory sets, a step that takes only the time to read "
    "the weights of target and drafter: it is at the MAT of the steps of all tasks."
)
_ERROR_BAR: dict[str, Any] = {"color": INK, "elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8}
_POINT: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 4, "color": "white"}
_POINT |= {"markeredgecolor": INK, "markeredgewidth": 0.8}
_NUMBER: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "va": "center"}
_NUMBER |= {"zorder": 4, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5}}


def speedups(report: Report) -> Plot | None:
    """The bars of each run and temperature; None without any speedup."""
    texts, is_any = [], False
    for title, run in report.panels:
        methods = _drafting(run)
        is_any |= any(isinstance(t.speedup, Estimate) for m in methods for t in m.tasks)
        means = {method.label: method.tasks[-1].speedup for method in methods}
        values = [f"{m} {v.value:.2f}" for m, v in means.items() if isinstance(v, Estimate)]
        texts.append(f"{title}, {', '.join(values) or 'no values'}")
    if not is_any:
        return None
    bars = "means over the tasks" if len(report.tasks) > 1 else "speedups"
    return Plot(
        name="speedup",
        title=_BY_TASK,
        alt=f"Bar chart of {bars}. By method: {'; '.join(texts)}.",
        caption=f"Bars are {bars} with their 95 % intervals ({report.scope})"
        f"{', points are tasks' * (len(report.tasks) > 1)}. The dashed line is vanilla.",
        draw=lambda: _draw_by_task(report),
    )


def _drafting(run: RunResults) -> list[MethodResults]:
    """The methods but vanilla, the fastest first."""
    methods = [method for method in run.methods if method.method != BASELINE and method.tasks]
    return sorted(methods, key=lambda method: -(value_or_none(method.tasks[-1].speedup) or 0.0))


def _draw_by_task(report: Report) -> Figure:
    from matplotlib.lines import Line2D

    found = report.panels
    shown = {m: look for m, look in style.looks(report.labels).items() if m != BASELINE}
    points = {"a task": _POINT} if len(report.tasks) > 1 else {}
    named = {**points, "Vanilla": LINE}
    handles = [Line2D([], [], label=label, **look) for label, look in named.items()]
    room: dict[str, Any] = {"most_columns": 1, "height": 0.8 + 0.29 * len(shown), "spare": 0}
    drawn, every = style.tiles(_BY_TASK, report.caption, len(found), **room, handles=handles)
    for axes, (title, run) in zip(every, found, strict=False):
        _draw_bars(axes, [one for one in _drafting(run) if one.method in shown], shown)
        style.frame(axes, title, x="speedup (times)", grid="x")
    return drawn


def _draw_bars(axes: Axes, methods: list[MethodResults], shown: Mapping[str, Look]) -> None:
    """A lying bar a method, or the reason for a missing mean."""
    from matplotlib.patheffects import withStroke

    on_dark = withStroke(linewidth=2.2, foreground="white")
    for i, method in enumerate(methods):
        value = method.tasks[-1].speedup
        if isinstance(value, Missing):
            reason = f" {style.drawable(value.reason)}"
            axes.text(0, -i, reason, color="0.35", fontsize=8, va="center")
            continue
        axes.barh(-i, value.value, height=0.72, **shown[method.method].bar)
        tasks = [task.speedup for task in method.tasks[:-1]]
        each = [one.value for one in tasks if isinstance(one, Estimate)]
        around = interval_of(value)
        if around:
            drawn = axes.errorbar(value.value, -i, xerr=style.error(value), **_ERROR_BAR)
            for line in drawn.get_children():
                line.set_path_effects([on_dark])
        axes.plot(each, [-i] * len(each), **_POINT)
        at = (max(around.high if around else 0, value.value, *each), -i)
        axes.annotate(f"{value.value:.2f}", at, (8, 0), **_NUMBER)
    axes.axvline(1.0, zorder=3, **LINE)
    names = ["\n".join(wrap(shown[method.method].label, 38)) for method in methods]
    axes.set_yticks([-i for i in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0.6 - max(1, len(methods)), 0.6)
    axes.set_xlim(left=0)
    axes.margins(x=0.07)


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
        title=_BY_MAT,
        alt=f"Scatter plot. {'; '.join(texts)}.",
        caption="Large points are means over the tasks with their intervals (of speedups: "
        f"{report.scope}), small ones the tasks. "
        "If drafting and wide steps were free, points would be on the dashed line, where the "
        f"speedup equals the accepted tokens; the distance below it is their cost.{memory}",
        draw=lambda: _draw_by_mat(report),
    )


def _point(mat: Value, speedup: Value) -> tuple[Estimate, Estimate] | None:
    """Accepted tokens and the speedup or its limit; None if either is missing."""
    if isinstance(mat, Estimate) and isinstance(speedup, Estimate):
        return mat, speedup
    return None


def _draw_by_mat(report: Report) -> Figure:
    from matplotlib.lines import Line2D

    found = report.panels
    shown = {m: look for m, look in style.looks(report.labels).items() if m != BASELINE}
    equality = Line2D([], [], label="as fast as tokens are accepted", **LINE)
    handles = [*style.points(shown.values(), has_line=False), equality]
    about = _BY_MAT, report.caption, len(found)
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


PLOTS = ((1, speedups), (3, speedup_by_mat))
