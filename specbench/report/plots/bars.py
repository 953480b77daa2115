"""Bar charts: a number of the papers' table by task, and tokens per second by machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.bootstrap import Estimate, Interval, Missing, Value
from specbench.report.formats import interval_of
from specbench.report.plots.style import (
    INK,
    LINE,
    MANY,
    Look,
    Plot,
    drawable,
    figure,
    frame,
    looks,
    name_rows,
    panels,
    patches,
    rows_of_axes,
)
from specbench.report.report import Report
from specbench.report.results import MEAN, RunResults, Task, TaskResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import Container
    from matplotlib.figure import Figure

_ERROR_BAR: dict[str, Any] = {"color": INK, "elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8}
_POINT: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 4}
_POINT |= {"color": "white", "markeredgecolor": INK, "markeredgewidth": 0.8}
_SMALL: dict[str, Any] = {"fontsize": 7, "ha": "center", "va": "bottom"}
_GROUP_WIDTH, _MOST_BAR_WIDTH = 0.84, 0.3
_MOST_LABELLED = 24
"""Bars of an axes that may still carry their value as text."""
_MACHINES = "Tokens per second by machine"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a task's result, and the words around it. `field` is the name of the number.

    `is_time` if it depends on the machine, so that its caption says what the intervals cover.
    """

    field: str
    title: str
    axis: str
    caption: str
    is_time: bool = False

    def of(self, result: TaskResult) -> Value:
        value: Value = getattr(result, self.field)
        return value


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar's centre and width on the x axis, and its height."""

    centre: float
    width: float
    value: Value


SPEEDUP = Quantity(
    field="speedup",
    title="Speedup over vanilla by task",
    axis="speedup (times)",
    caption="Bars are speedups with their 95 % intervals. The dashed line is vanilla.",
    is_time=True,
)
MAT = Quantity(
    field="mat",
    title="Mean accepted tokens by task",
    axis="mean accepted tokens (per step)",
    caption="Tokens that a step of the target emits, with 95 % intervals. The dashed line is "
    "vanilla, one token per step.",
)


def by_task(report: Report, quantity: Quantity) -> Plot | None:
    """A group of bars per task, a bar per method; one panel per run and temperature."""
    methods = [m for block in report.results.blocks for m in block.methods if m.method != BASELINE]
    results = [quantity.of(task) for method in methods for task in method.tasks]
    if not any(isinstance(value, Estimate) for value in results):
        return None
    texts = []
    for panel in panels(report.results):
        values = [
            f"{method.label} {value.value:.2f}"
            for method in panel.run.methods
            if method.method != BASELINE and method.tasks
            if isinstance(value := quantity.of(method.tasks[-1]), Estimate)
        ]
        texts.append(f"{panel.title}, {', '.join(values) or 'no values'}")
    where = "mean over the tasks" if len(report.results.tasks) > 1 else "overall"
    return Plot(
        name=quantity.field,
        title=quantity.title,
        alt=f"Bar chart. {quantity.title}. By method, {where}: {'; '.join(texts)}.",
        caption=f"{quantity.caption} Intervals: {report.results.scope}."
        if quantity.is_time
        else quantity.caption,
        draw=lambda: _draw(report, quantity),
    )


def _draw(report: Report, quantity: Quantity) -> Figure:
    found, results = panels(report.results), report.results
    shown = {m: look for m, look in looks(results).items() if m != BASELINE}
    is_lying = len(shown) >= MANY or len({look.colour for look in shown.values()}) < len(shown)
    handles = [_entry("a task", _POINT)] if is_lying else patches(shown.values())
    heights = [0.8 + 0.29 * len(shown) if is_lying else 2.9] * max(1, len(found))
    handles += [_entry("Vanilla", LINE)]
    drawn = figure(quantity.title, results.caption, sum(heights), handles)
    for axes, panel in zip(rows_of_axes(drawn, heights), found, strict=False):
        if is_lying:
            _draw_rows(axes, panel.run, quantity=quantity, shown=shown)
            frame(axes, panel.title, x=f"{quantity.axis}: bars are means of the tasks", grid="x")
        else:
            _draw_run(axes, panel.run, results.tasks, quantity=quantity, shown=shown)
            frame(axes, panel.title, y=quantity.axis)
    return drawn


def _entry(label: str, style: Mapping[str, Any]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def _draw_rows(
    axes: Axes, run: RunResults, *, quantity: Quantity, shown: Mapping[str, Look]
) -> None:
    """A lying bar a method, the largest on top: the mean of the tasks, which are points on it."""
    methods = [method for method in run.methods if method.method in shown and method.tasks]
    methods.sort(key=lambda method: -_number(quantity.of(method.tasks[-1])))
    for i, method in enumerate(methods):
        value = quantity.of(method.tasks[-1])
        if isinstance(value, Missing):
            reason = f" {drawable(value.reason)}"
            axes.text(0, -i, reason, color="0.35", fontsize=8, va="center")
            continue
        axes.barh(-i, value.value, height=0.72, **shown[method.method].bar)
        each = [_number(quantity.of(task)) for task in method.tasks[:-1]]
        around = interval_of(value) or Interval(value.value, value.value)
        ends = [[value.value - around.low], [around.high - value.value]]
        _with_halo(axes.errorbar(value.value, -i, xerr=ends, **_ERROR_BAR))
        axes.plot(each, [-i] * len(each), **_POINT)
        at, text = (max(around.high, *each, 0), -i), f"   {value.value:.2f}"
        axes.annotate(text, at, fontsize=8, va="center")
    axes.axvline(1.0, zorder=3, **LINE)
    name_rows(axes, [shown[method.method] for method in methods])
    axes.set_ylim(0.6 - max(1, len(methods)), 0.6)
    axes.set_xlim(left=0)
    axes.margins(x=0.07)


def _with_halo(interval: Container) -> None:
    """Make an interval visible on dark bars."""
    from matplotlib.patheffects import withStroke

    for line in interval.get_children():
        line.set_path_effects([withStroke(linewidth=2.2, foreground="white")])


def _number(value: Value) -> float:
    return value.value if isinstance(value, Estimate) else 0.0


def _draw_run(
    axes: Axes,
    run: RunResults,
    tasks: Sequence[Task],
    *,
    quantity: Quantity,
    shown: Mapping[str, Look],
) -> None:
    """A group of bars a task, the mean first."""
    methods = [method for method in run.methods if method.method in shown]
    order = sorted(range(len(tasks)), key=lambda i: tasks[i].name != MEAN)
    width = min(_MOST_BAR_WIDTH, _GROUP_WIDTH / max(1, len(methods)))
    for i, method in enumerate(methods):
        offset = (i + 0.5 - len(methods) / 2) * width
        values = [quantity.of(method.tasks[task]) for task in order]
        bars = [_Bar(j + offset, width * 0.92, value) for j, value in enumerate(values)]
        _draw_bars(axes, bars, shown[method.method])
        if len(methods) * len(tasks) <= _MOST_LABELLED:
            _draw_values(axes, bars)
    axes.axhline(1.0, zorder=3, **LINE)
    if tasks and tasks[-1].name == MEAN:
        axes.axvline(0.5, color="0.7", linewidth=0.8)
    axes.set_xticks(range(len(tasks)), [drawable(tasks[task].title) for task in order])
    axes.set_xlim(-0.55, max(1, len(tasks)) - 0.45)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    axes.tick_params(axis="x", length=0)


def _draw_bars(axes: Axes, bars: Sequence[_Bar], look: Look) -> None:
    """The bars of one method, or the reason for a missing value."""
    for bar in bars:
        if isinstance(bar.value, Missing):
            reason = f" {drawable(bar.value.reason)}"
            axes.text(bar.centre, 0, reason, rotation=90, color="0.35", **_SMALL)
            continue
        axes.bar(bar.centre, bar.value.value, bar.width, **look.bar)
        if interval := interval_of(bar.value):
            around = [[bar.value.value - interval.low], [interval.high - bar.value.value]]
            _with_halo(axes.errorbar(bar.centre, bar.value.value, around, **_ERROR_BAR))


def _draw_values(axes: Axes, bars: Sequence[_Bar]) -> None:
    for bar in bars:
        if isinstance(bar.value, Estimate):
            interval = interval_of(bar.value)
            top = (bar.centre, interval.high if interval else bar.value.value)
            text = f"{bar.value.value:.2f}"
            axes.annotate(text, top, xytext=(0, 2), textcoords="offset points", **_SMALL)


def by_machine(report: Report) -> Plot | None:
    """Tokens per second of every method on each machine; None for a single machine."""
    if len({source.info.machine.device for source in report.sources}) < 2:
        return None
    found = looks(report.results)
    texts = []
    for block in report.results.blocks:
        for label, rates in _rates(report, block.temperature).items():
            values = [
                f"{found[method].label} {rate.value:.0f}"
                for method, rate in rates.items()
                if isinstance(rate, Estimate) and method in found
            ]
            texts.append(f"{block.heading}, {label}: {', '.join(values)}")
    return Plot(
        name="machines",
        title=_MACHINES,
        alt=f"Bar chart. Tokens per second. {'; '.join(texts)}.",
        caption="Tokens of all samples over their wall time, vanilla included. This plot compares "
        "machines; the others compare methods on one machine.",
        draw=lambda: _draw_machines(report),
    )


def _rates(report: Report, temperature: float) -> dict[str, dict[str, Value]]:
    """Tokens per second by label of the run and by method."""
    return {
        source.label: {
            method: source.metrics.pooled(method, temperature).tokens_per_s
            for method in source.metrics.methods
        }
        for source in report.sources
        if temperature in source.metrics.temperatures
    }


def _draw_machines(report: Report) -> Figure:
    blocks, shown = report.results.blocks, looks(report.results)
    height = 0.3 + 2.9 * len(blocks)
    drawn = figure(_MACHINES, report.results.caption, height, patches(shown.values()))
    width = min(_MOST_BAR_WIDTH, _GROUP_WIDTH / len(shown))
    for axes, block in zip(rows_of_axes(drawn, [1] * len(blocks)), blocks, strict=True):
        rates = _rates(report, block.temperature)
        for i, of_methods in enumerate(rates.values()):
            for j, (method, look) in enumerate(shown.items()):
                value = of_methods.get(method)
                if isinstance(value, Estimate):
                    bar = _Bar(i + (j + 0.5 - len(shown) / 2) * width, width * 0.92, value)
                    _draw_bars(axes, [bar], look)
        names = [drawable(label).replace(", ", "\n") for label in rates]
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.55, len(names) - 0.45)
        axes.tick_params(axis="x", length=0)
        frame(axes, block.heading, y="tokens per second")
    return drawn


PLOTS = (
    (1, partial(by_task, quantity=SPEEDUP)),
    (2, partial(by_task, quantity=MAT)),
    (9, by_machine),
)
