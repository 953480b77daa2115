"""Bar charts of a table: a group of bars per task, a bar per method.

Knows figures and colours. Uses matplotlib's objects only, never its global state, so that drawing
changes nothing for a program that embeds it.

The colours are Okabe and Ito's ("Color Universal Design", 2008), told apart by people with any
colour vision, in an order that alternates dark and light; hatches tell them apart in grey.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.report.formats import interval_of
from specbench.report.table import MEAN, Cell, Group, Table

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = (
    ("#0072B2", ""),
    ("#E69F00", "////"),
    ("#009E73", ""),
    ("#F0E442", "...."),
    ("#D55E00", "----"),
    ("#56B4E9", "\\\\\\\\"),
    ("#CC79A7", ""),
    ("#BBBBBB", "xxxx"),
)
_LINE: dict[str, Any] = {"color": "black", "linewidth": 1, "linestyle": (0, (4, 3))}
_ERROR_BAR: dict[str, Any] = {"color": "black", "elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8}
_SMALL: dict[str, Any] = {"fontsize": 7, "ha": "center", "va": "bottom"}
_DPI = 150
_GROUP_WIDTH, _MOST_BAR_WIDTH = 0.82, 0.4
_MOST_LABELLED = 30
"""Bars of an axes that may still carry their value as text."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a chart shows of a cell, and the label of its axis."""

    name: str
    axis: str

    def of(self, cell: Cell) -> Value:
        value: Value = getattr(cell, self.name)
        return value


@dataclass(frozen=True, slots=True)
class _Bar:
    """Where a bar stands on the x axis, and how high it is."""

    centre: float
    width: float
    value: Value


SPEEDUP = Quantity("speedup", "Speedup over vanilla (times)")
MAT = Quantity("mat", "Mean accepted tokens (tokens per step)")


def bar_chart(table: Table, quantity: Quantity) -> bytes:
    """A PNG with one axes per block of the table, error bars being the 95 % intervals."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure(table, quantity)
    FigureCanvasAgg(figure)
    png = BytesIO()
    figure.savefig(png, format="png", dpi=_DPI, metadata={"Software": None})
    return png.getvalue()


def _figure(table: Table, quantity: Quantity) -> Figure:
    from matplotlib.figure import Figure

    panels = [(block, group) for block in table.blocks for group in block.groups]
    num_blocks = max(1, len(panels))
    figure = Figure(figsize=(11, 1.1 + 3.4 * num_blocks), layout="constrained")
    figure.suptitle("\n".join(wrap(table.title, 110)), fontsize=11, x=0.01, ha="left")
    every_axes = figure.subplots(num_blocks, 1, squeeze=False)[:, 0]
    labels = _methods(table)
    for axes, (block, group) in zip(every_axes, panels, strict=False):
        _draw_group(axes, group, table, quantity, labels)
        heading = block.heading if table.is_one_run else f"{block.heading}, {group.label}"
        axes.set_title(heading, fontsize=10, loc="left")
    figure.legend(handles=_legend(labels), loc="outside right upper", frameon=False)
    return figure


def _legend(labels: dict[str, str]) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = ["\n".join(wrap(label, 24)) for label in labels.values()]
    bars = [Patch(label=name, **_look(i)) for i, name in enumerate(names)]
    return [*bars, Line2D([], [], label="Vanilla", **_LINE)]


def _look(index: int) -> dict[str, Any]:
    colour, hatch = _LOOKS[index % len(_LOOKS)]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "#333333", "linewidth": 0.5}


def _methods(table: Table) -> dict[str, str]:
    """The methods that have bars anywhere, with their labels; their order gives the looks."""
    rows = [row for block in table.blocks for row in block.rows]
    return {row.method: row.label for row in rows if row.method != BASELINE and not row.reason}


def _draw_group(
    axes: Axes, group: Group, table: Table, quantity: Quantity, labels: dict[str, str]
) -> None:
    rows = [row for row in group.rows if row.method in labels]
    width = min(_MOST_BAR_WIDTH, _GROUP_WIDTH / max(1, len(labels)))
    methods = list(labels)
    for row in rows:
        index = methods.index(row.method)
        offset = (index + 0.5 - len(labels) / 2) * width
        bars = [
            _Bar(i + offset, width * 0.92, quantity.of(cell)) for i, cell in enumerate(row.cells)
        ]
        _draw_bars(axes, bars, index)
        if len(rows) * len(table.columns) <= _MOST_LABELLED:
            _draw_values(axes, bars)
    axes.axhline(1.0, zorder=3, **_LINE)
    if table.columns and table.columns[-1].task == MEAN:
        axes.axvline(len(table.columns) - 1.5, color="0.7", linewidth=0.8)
    axes.set_xticks(range(len(table.columns)), [column.title for column in table.columns])
    axes.set_xlim(-0.55, len(table.columns) - 0.45)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    axes.set_ylabel(quantity.axis)
    axes.grid(axis="y", color="0.88")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", length=0)


def _draw_bars(axes: Axes, bars: Sequence[_Bar], index: int) -> None:
    """One method's bars. Where there is no value stands the reason."""
    for bar in bars:
        if isinstance(bar.value, Missing):
            axes.text(bar.centre, 0, f" {bar.value.reason}", rotation=90, **_SMALL, color="0.35")
            continue
        axes.bar(bar.centre, bar.value.value, bar.width, **_look(index))
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
