"""Bar charts: a quantity of the table by task, and tokens per second by machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.report.formats import interval_of
from specbench.report.plots.style import (
    INK,
    LINE,
    Look,
    Plot,
    figure,
    frame,
    legend,
    looks,
    panel_title,
    patches,
)
from specbench.report.source import Report
from specbench.report.table import MEAN, Cell, Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ERROR_BAR: dict[str, Any] = {"color": INK, "elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8}
_SMALL: dict[str, Any] = {"fontsize": 7, "ha": "center", "va": "bottom"}
_GROUP_WIDTH, _MOST_BAR_WIDTH = 0.84, 0.3
_MOST_LABELLED = 24
"""Bars of an axes that may still carry their value as text."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a chart shows of a cell: the field's name, and the words around it."""

    field: str
    title: str
    axis: str
    caption: str

    def of(self, cell: Cell) -> Value:
        value: Value = getattr(cell, self.field)
        return value


@dataclass(frozen=True, slots=True)
class _Bar:
    """Where a bar stands on the x axis, and how high it is."""

    centre: float
    width: float
    value: Value


SPEEDUP = Quantity(
    "speedup",
    "Speedup over plain decoding, by task",
    "speedup (times)",
    "Bars are speedups, their whiskers 95 % intervals. The dashed line is vanilla: a whisker that "
    "crosses it is a method not told apart from plain decoding.",
)
MAT = Quantity(
    "mat",
    "Mean accepted tokens, by task",
    "mean accepted tokens (per step)",
    "Tokens that a step of the target yields, with 95 % intervals. The dashed line is vanilla, one "
    "token a step.",
)


def by_task(report: Report, quantity: Quantity) -> Plot:
    """A group of bars per task, a bar per method; one panel per run and temperature."""
    return Plot(
        quantity.field,
        quantity.title,
        _alt(report, quantity),
        quantity.caption,
        lambda: _draw(report, quantity),
    )


def by_machine(report: Report) -> Plot | None:
    """Tokens per second of every method on each machine; nothing where there is but one."""
    if len({source.info.machine.device for source in report.sources}) < 2:
        return None
    return Plot(
        "machines",
        "Tokens per second, by machine",
        _alt_machines(report),
        "Tokens of all samples over their wall time, vanilla included. Machines are compared here, "
        "methods within a machine above.",
        lambda: _draw_machines(report),
    )


def _alt(report: Report, quantity: Quantity) -> str:
    texts = []
    for block in report.table.blocks:
        for group in block.groups:
            values = [
                f"{row.label} {quantity.of(row.cells[-1]).value:.2f}"  # type: ignore[union-attr]
                for row in group.rows
                if row.method != BASELINE and row.cells
                if isinstance(quantity.of(row.cells[-1]), Estimate)
            ]
            title = panel_title(report, block.heading, group.label)
            texts.append(f"{title}, {', '.join(values) or 'no values'}")
    where = "mean over the tasks" if len(report.table.columns) > 1 else "in all"
    return f"Bar chart. {quantity.title}. By method, {where}: {'; '.join(texts)}."


def _draw(report: Report, quantity: Quantity) -> Figure:
    panels = [(block, group) for block in report.table.blocks for group in block.groups]
    shown = {m: look for m, look in looks(report).items() if m != BASELINE}
    drawn = figure(
        quantity.title, report.table.title, 0.5 + (3.2 if len(panels) < 2 else 2.7 * len(panels))
    )
    every_axes = drawn.subplots(max(1, len(panels)), 1, squeeze=False)[:, 0]
    for axes, (block, group) in zip(every_axes, panels, strict=False):
        _draw_group(axes, group, report, quantity, shown)
        frame(axes, panel_title(report, block.heading, group.label), y=quantity.axis)
    legend(drawn, [*patches(shown.values()), _vanilla_line()])
    return drawn


def _vanilla_line() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label="Vanilla", **LINE)


def _draw_group(
    axes: Axes, group: Group, report: Report, quantity: Quantity, shown: Mapping[str, Look]
) -> None:
    columns = report.table.columns
    rows = [row for row in group.rows if row.method in shown]
    places = {method: i for i, method in enumerate(row.method for row in rows)}
    width = min(_MOST_BAR_WIDTH, _GROUP_WIDTH / max(1, len(rows)))
    for row in rows:
        offset = (places[row.method] + 0.5 - len(rows) / 2) * width
        bars = [
            _Bar(i + offset, width * 0.92, quantity.of(cell)) for i, cell in enumerate(row.cells)
        ]
        _draw_bars(axes, bars, shown[row.method])
        if len(rows) * len(columns) <= _MOST_LABELLED:
            _draw_values(axes, bars)
    axes.axhline(1.0, zorder=3, **LINE)
    if columns and columns[-1].task == MEAN:
        axes.axvline(len(columns) - 1.5, color="0.7", linewidth=0.8)
    axes.set_xticks(range(len(columns)), [column.title for column in columns])
    axes.set_xlim(-0.55, max(1, len(columns)) - 0.45)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    axes.tick_params(axis="x", length=0)


def _draw_bars(axes: Axes, bars: Sequence[_Bar], look: Look) -> None:
    """One method's bars. Where there is no value stands the reason."""
    for bar in bars:
        if isinstance(bar.value, Missing):
            axes.text(bar.centre, 0, f" {bar.value.reason}", rotation=90, **_SMALL, color="0.35")
            continue
        axes.bar(bar.centre, bar.value.value, bar.width, **look.bar)
        if interval := interval_of(bar.value):
            around = [[bar.value.value - interval.low], [interval.high - bar.value.value]]
            axes.errorbar(bar.centre, bar.value.value, around, **_ERROR_BAR)


def _draw_values(axes: Axes, bars: Sequence[_Bar]) -> None:
    for bar in bars:
        if isinstance(bar.value, Estimate):
            interval = interval_of(bar.value)
            top = interval.high if interval else bar.value.value
            axes.annotate(
                f"{bar.value.value:.2f}",
                (bar.centre, top),
                xytext=(0, 2),
                textcoords="offset points",
                **_SMALL,
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


def _alt_machines(report: Report) -> str:
    texts = []
    for block in report.table.blocks:
        for label, rates in _rates(report, block.temperature).items():
            values = [
                f"{looks(report)[method].label} {rate.value:.0f}"
                for method, rate in rates.items()
                if isinstance(rate, Estimate) and method in looks(report)
            ]
            texts.append(f"{block.heading}, {label}: {', '.join(values)}")
    return f"Bar chart. Tokens per second. {'; '.join(texts)}."


def _draw_machines(report: Report) -> Figure:
    blocks, shown = report.table.blocks, looks(report)
    drawn = figure("Tokens per second, by machine", report.table.title, 0.5 + 2.9 * len(blocks))
    every_axes = drawn.subplots(len(blocks), 1, squeeze=False)[:, 0]
    width = min(_MOST_BAR_WIDTH, _GROUP_WIDTH / len(shown))
    for axes, block in zip(every_axes, blocks, strict=True):
        rates = _rates(report, block.temperature)
        for i, of_methods in enumerate(rates.values()):
            for j, (method, look) in enumerate(shown.items()):
                value = of_methods.get(method)
                if isinstance(value, Estimate):
                    bar = _Bar(i + (j + 0.5 - len(shown) / 2) * width, width * 0.92, value)
                    _draw_bars(axes, [bar], look)
        names = [label.replace(", ", "\n") for label in rates]
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.55, len(names) - 0.45)
        axes.tick_params(axis="x", length=0)
        frame(axes, block.heading, y="tokens per second")
    legend(drawn, patches(shown.values()))
    return drawn
