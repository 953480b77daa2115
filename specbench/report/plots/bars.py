"""Bar chart of speedups: a bar a method, the mean of its tasks, which are points on it."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from specbench.analysis.frames import value_or_none
from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.bootstrap import Estimate, Missing
from specbench.report.formats import interval_of
from specbench.report.plots import style
from specbench.report.plots.style import INK, LINE, Look, Plot
from specbench.report.results import MethodResults, Report, RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "Speedup over vanilla by task"
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
        title=_TITLE,
        alt=f"Bar chart of {bars}. By method: {'; '.join(texts)}.",
        caption=f"Bars are {bars} with their 95 % intervals ({report.scope})"
        f"{', points are tasks' * (len(report.tasks) > 1)}. The dashed line is vanilla.",
        draw=lambda: _draw(report),
    )


def _drafting(run: RunResults) -> list[MethodResults]:
    """The methods but vanilla, the fastest first."""
    methods = [method for method in run.methods if method.method != BASELINE and method.tasks]
    return sorted(methods, key=lambda method: -(value_or_none(method.tasks[-1].speedup) or 0.0))


def _draw(report: Report) -> Figure:
    from matplotlib.lines import Line2D

    found = report.panels
    shown = {m: look for m, look in style.looks(report.labels).items() if m != BASELINE}
    points = {"a task": _POINT} if len(report.tasks) > 1 else {}
    named = {**points, "Vanilla": LINE}
    handles = [Line2D([], [], label=label, **look) for label, look in named.items()]
    room: dict[str, Any] = {"most_columns": 1, "height": 0.8 + 0.29 * len(shown), "spare": 0}
    drawn, every = style.tiles(_TITLE, report.caption, len(found), **room, handles=handles)
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


PLOTS = ((1, speedups),)
