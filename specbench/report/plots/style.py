"""What all plots share: a look for each method, figures, and how they become files.

Uses matplotlib's objects only. Its global settings are changed while a file is written, and put
back.

The colours are Paul Tol's "muted" ("Colour Schemes", SRON 2021), told apart by people with any
colour vision, and dark enough to be seen on white; markers and hatches tell them apart in grey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, count
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from specbench.analysis.metrics import BASELINE
from specbench.report.source import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.0
"""Inches. With the font sizes below legible where a page shows it 800 pixels wide."""
_DPI = 120
_KNOWN = ("sps", "pld", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3")
"""Methods whose look is the same in every report."""
_COLOURS = (
    "#88CCEE", "#DDCC77", "#999933", "#44AA99", "#117733", "#CC6677", "#882255", "#332288",
    "#AA4499",
)  # fmt: skip
_HATCHES = ("", "///", "xx", "---", "\\\\\\", "", "///", "", "||")
_DARK = frozenset({"#117733", "#882255", "#332288", "#AA4499"})
"""Colours on which hatches and outlines are white."""
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<")
_BASELINE_COLOUR = "#777777"
INK, FAINT, EDGE = "#222222", "#666666", "#333333"
LINE: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": (0, (4, 3))}


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn."""

    label: str
    colour: str
    hatch: str
    marker: str

    @property
    def bar(self) -> dict[str, Any]:
        edge = "white" if self.colour in _DARK else EDGE
        face = {"facecolor": self.colour, "hatch": self.hatch}
        return {**face, "edgecolor": edge, "linewidth": 0.5}

    @property
    def point(self) -> dict[str, Any]:
        return {
            "color": self.colour,
            "marker": self.marker,
            "markeredgecolor": EDGE,
            "markeredgewidth": 0.5,
        }


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture: its file's name, what it is called, the words for who cannot see it, a sentence
    on how to read it, and what draws it.
    """

    name: str
    title: str
    alt: str
    caption: str
    draw: Callable[[], Figure]


def looks(report: Report) -> dict[str, Look]:
    """The look of every method that has anything to show. A method keeps it across reports; other
    spellings of it, with other options, take what is free.
    """
    labels = {
        row.method: row.label
        for block in report.table.blocks
        for row in block.rows
        if not row.reason
    }
    places: dict[str, int] = {}
    for spelling in labels:
        name = spelling.partition(":")[0]
        if name in _KNOWN and _KNOWN.index(name) not in places.values():
            places[spelling] = _KNOWN.index(name)
    own = [i for i in reversed(range(len(_COLOURS))) if i not in places.values()]
    free = chain(own, count(len(_COLOURS)))
    return {
        spelling: _look(label, places[spelling] if spelling in places else next(free))
        if spelling != BASELINE
        else Look(label, _BASELINE_COLOUR, "", "h")
        for spelling, label in labels.items()
    }


def _look(label: str, place: int) -> Look:
    """The look of a place; when all colours are taken they come again with other hatches."""
    colour = place % len(_COLOURS)
    other = (place + place // len(_COLOURS)) % len(_COLOURS)
    return Look(label, _COLOURS[colour], _HATCHES[other], _MARKERS[other])


def figure(title: str, subtitle: str, height: float) -> Figure:
    """An empty figure of the common width below its title; `height` is in inches."""
    from matplotlib.figure import Figure

    lines = wrap(subtitle, 118)
    head = 0.4 + 0.16 * len(lines)
    total = height + head
    drawn = Figure(figsize=(WIDTH, total), layout="constrained")
    room = (0.0, 0.0, 1.0, 1 - head / total)
    drawn.get_layout_engine().set(h_pad=0.06, w_pad=0.06, rect=room)  # type: ignore[union-attr, call-arg]
    words = (
        drawn.text(0.008, 1 - 0.07 / total, title, fontsize=12, color=INK, weight="bold", va="top"),
        drawn.text(0.008, 1 - 0.32 / total, "\n".join(lines), fontsize=8.5, color=FAINT, va="top"),
    )
    for each in words:
        each.set_in_layout(False)
    return drawn


def frame(axes: Axes, title: str = "", x: str = "", y: str = "", grid: str = "y") -> None:
    """The common dress of an axes. Its title breaks where a neighbour's begins."""
    grid_spec = axes.get_gridspec()
    columns = grid_spec.ncols if grid_spec else 1
    lines = "\n".join(wrap(title, 104 // columns - 4))
    axes.set_title(lines, fontsize=9.5, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8.5)
    axes.grid(axis=grid, color="0.9", linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(drawn: Figure, handles: Sequence[Any]) -> None:
    """The legend of the whole figure, in rows below it."""
    widest = max((len(str(handle.get_label())) for handle in handles), default=0)
    most = max(1, min(len(handles), 110 // (widest + 7)))
    rows = -(-len(handles) // most)
    columns = -(-len(handles) // max(1, rows))
    drawn.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(1, columns),
        frameon=False,
        fontsize=8.5,
    )


def patches(shown: Iterable[Look]) -> list[Any]:
    """Legend entries for bars."""
    from matplotlib.patches import Patch

    return [Patch(label=_short(look.label), **look.bar) for look in shown]


def points(shown: Iterable[Look], *, has_line: bool = True) -> list[Any]:
    """Legend entries for points, and the lines through them."""
    from matplotlib.lines import Line2D

    line: Literal["-", ""] = "-" if has_line else ""

    return [
        Line2D([], [], label=_short(look.label), linestyle=line, **look.point) for look in shown
    ]


def _short(label: str) -> str:
    return "\n".join(wrap(label, 28))


def panel_title(report: Report, heading: str, label: str) -> str:
    """What stands above the panel of one run at one temperature."""
    return heading if report.table.is_one_run else f"{heading}, {label}"


def to_png(drawn: Figure) -> bytes:
    """The figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(drawn)
    png = BytesIO()
    drawn.savefig(png, format="png", dpi=_DPI, metadata={"Software": None})
    return png.getvalue()


def to_svg(drawn: Figure) -> bytes:
    """The figure as SVG with its text as text, the same bytes for the same figure."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(drawn)
    svg = BytesIO()
    settings: dict[str, Any] = {
        "svg.hashsalt": "specbench",
        "svg.fonttype": "none",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    }
    with rc_context(settings):  # type: ignore[arg-type]  # newer stubs list every key
        drawn.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()
