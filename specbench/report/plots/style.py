"""The common parts of all plots: a look for each method, panels, figures and image files.

Uses matplotlib's objects only. Its global settings change while a file is written, and are put
back.

The colours are Paul Tol's "muted" ("Colour Schemes", SRON 2021): distinct for any colour
vision and visible on white. Markers and hatches are distinct in grey.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import chain, count
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from specbench.analysis.metrics import BASELINE
from specbench.methods import described
from specbench.report.results import Results, RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.0
"""Inches. Text is legible where a page shows the plot 800 pixels wide."""
_DPI = 120
_COLOURS = (
    "#88CCEE", "#DDCC77", "#999933", "#44AA99", "#117733", "#CC6677", "#882255", "#332288",
    "#AA4499",
)  # fmt: skip
_HATCHES = ("", "///", "xx", "---", "\\\\\\", "", "///", "", "||")
_DARK = frozenset({"#117733", "#882255", "#332288", "#AA4499"})
"""Colours on which hatches and outlines are white."""
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<")
_BASELINE_COLOUR = "#777777"
_PLAIN_TEXT: Any = {"text.parse_math": False}
"""Names from outside may have a "$", which begins a formula otherwise."""
_ESCAPES = {
    first + code: f"\\x{code:02x}"
    for first, codes in ((0, {*range(0x20)} - {0x0A}), (0x2400, range(0x20)), (0, [0x7F]))
    for code in codes
} | {0x2421: "\\x7f"}
"""Control characters but line breaks, and the pictures that `specbench.errors` puts for them."""
INK, FAINT, EDGE = "#222222", "#666666", "#333333"
LINE: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": (0, (4, 3))}


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, hatch and marker of a method."""

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
class Images:
    """The bytes of a figure in each format: text of the SVG is text, and no date is in it."""

    svg: bytes
    png: bytes


@dataclass(frozen=True)
class Plot:
    """One picture, drawn at first use and saved in all formats.

    `name` is that of its file, `alt` describes it to readers who cannot see it, `caption` says
    how to read it.
    """

    name: str
    title: str
    alt: str
    caption: str
    draw: Callable[[], Figure]

    @cached_property
    def figure(self) -> Figure:
        """The drawing, with every text in it as it is."""
        from matplotlib import rc_context

        with rc_context(_PLAIN_TEXT):
            return self.draw()

    @cached_property
    def images(self) -> Images:
        return save(self.figure)


@dataclass(frozen=True, slots=True)
class Panel:
    """The results of one run at one temperature, with the title of their axes."""

    title: str
    run: RunResults


def drawable(text: str) -> str:
    """The text with escapes for control characters and their pictures, which fonts lack."""
    return text.translate(_ESCAPES)


def panels(results: Results) -> list[Panel]:
    """A panel for each temperature and run, in the order of the tables."""
    return [
        Panel(block.heading if results.is_one_run else f"{block.heading}, {run.label}", run)
        for block in results.blocks
        for run in block.runs
    ]


def looks(results: Results) -> dict[str, Look]:
    """The look of every method with any number. A method has the same look in all reports;
    other spellings of it, with other options, take those that are free.
    """
    labels = {
        method.method: drawable(method.label)
        for block in results.blocks
        for method in block.methods
        if not method.reason
    }
    known: dict[str, int] = {}
    for spelling in labels:
        about = described().get(spelling.partition(":")[0])
        if about and about.colour and _COLOURS.index(about.colour) not in known.values():
            known[spelling] = _COLOURS.index(about.colour)
    unused = [i for i in reversed(range(len(_COLOURS))) if i not in known.values()]
    free = chain(unused, count(len(_COLOURS)))
    return {
        spelling: _look(label, known[spelling] if spelling in known else next(free))
        if spelling != BASELINE
        else Look(label, _BASELINE_COLOUR, hatch="", marker="h")
        for spelling, label in labels.items()
    }


def _look(label: str, number: int) -> Look:
    """The look of this number; beyond the last colour they repeat with other hatches."""
    colour = number % len(_COLOURS)
    other = (number + number // len(_COLOURS)) % len(_COLOURS)
    return Look(label, _COLOURS[colour], hatch=_HATCHES[other], marker=_MARKERS[other])


def figure(title: str, subtitle: str, height: float) -> Figure:
    """An empty figure of the common width, with titles above `height` inches."""
    from matplotlib.figure import Figure

    lines = wrap(drawable(subtitle), 118)
    head = 0.4 + 0.16 * len(lines)
    total = height + head
    drawn = Figure(figsize=(WIDTH, total), dpi=_DPI, layout="constrained")
    room = (0.0, 0.0, 1.0, 1 - head / total)
    drawn.get_layout_engine().set(h_pad=0.06, w_pad=0.06, rect=room)  # type: ignore[union-attr, call-arg]
    words = (
        drawn.text(0.008, 1 - 0.07 / total, title, fontsize=12, color=INK, weight="bold", va="top"),
        drawn.text(0.008, 1 - 0.32 / total, "\n".join(lines), fontsize=8.5, color=FAINT, va="top"),
    )
    for each in words:
        each.set_in_layout(False)
    return drawn


def rows_of_axes(drawn: Figure, heights: Sequence[float]) -> Sequence[Axes]:
    """Axes one below the other, of these relative heights."""
    return list(drawn.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])


def tiles(
    title: str,
    subtitle: str,
    number: int,
    *,
    most_columns: int,
    height: float,
    share: bool = False,
) -> tuple[Figure, Sequence[Axes]]:
    """A figure with this number of equal axes, `height` inches each."""
    columns = max(1, min(most_columns, number))
    rows = -(-number // columns)
    drawn = figure(title, subtitle, 0.5 + height * rows)
    grid = drawn.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)
    every = list(grid.ravel())
    for axes in every[number:]:
        axes.set_visible(False)
    return drawn, every


def frame(axes: Axes, title: str = "", *, x: str = "", y: str = "", grid: str = "y") -> None:
    """Title, labels and grid of an axes. The title breaks where a neighbour's begins."""
    grid_spec = axes.get_gridspec()
    columns = grid_spec.ncols if grid_spec else 1
    lines = "\n".join(wrap(drawable(title), 104 // columns - 4))
    axes.set_title(lines, fontsize=9.5, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8.5)
    axes.grid(axis=grid, color="0.9", linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(drawn: Figure, handles: Sequence[Any]) -> None:
    """Draw the legend of the whole figure in rows below it."""
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
    """Legend entries for points, with the lines through them."""
    from matplotlib.lines import Line2D

    line: Literal["-", ""] = "-" if has_line else ""

    return [
        Line2D([], [], label=_short(look.label), linestyle=line, **look.point) for look in shown
    ]


def _short(label: str) -> str:
    return "\n".join(wrap(label, 28))


def save(drawn: Figure) -> Images:
    """The figure as SVG and PNG, with one layout. The same figure gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    settings: dict[str, Any] = {
        **_PLAIN_TEXT,
        "svg.hashsalt": "specbench",
        "svg.fonttype": "none",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    }
    svg, png = BytesIO(), BytesIO()
    with rc_context(settings), _any_script():  # type: ignore[arg-type]  # newer stubs list every key
        # `savefig` would lay the figure out and draw it twice for each format.
        FigureCanvasAgg(drawn).print_png(png, metadata={"Software": None})
        drawn.set_layout_engine("none")
        FigureCanvasSVG(drawn).print_svg(svg, metadata={"Date": None})
    return Images(svg.getvalue(), png.getvalue())


@contextmanager
def _any_script() -> Iterator[None]:
    """Draw a box, without a warning, for a character that the machine's fonts lack."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
