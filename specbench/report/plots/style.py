"""The common parts of all plots: a look for each method, panels and figures.

A method has the same colour in every report. Its variants have this colour and a number. Colours in
`methods/` differ for any colour vision and are visible on white, which a test checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.estimates import Estimate
from specbench.methods import described
from specbench.report.formats import interval_of
from specbench.report.plots.images import DPI, PLAIN_TEXT, Images, save, save_pdf

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.0
"""The width of a figure in inches. Its text is legible if a page shows it 800 pixels wide."""
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<", ">", "p", "d", "H", "8")
_WIDE_NUMBER = 6.4
"""Half the width of two digits, in the units of their outlines."""
_BASELINE_COLOUR = "#777777"
_PICTURES = 0x2400
"""The first picture of a control character. `specbench.errors` writes these pictures."""
_CONTROL = [code for code in range(0x20) if chr(code) != "\n"]
_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*_CONTROL, 0x7F)},
    **{_PICTURES + code: f"\\x{code:02x}" for code in range(0x20)},
    _PICTURES + 0x21: "\\x7f",
}
"""Escapes for control characters except line breaks, and for their pictures."""
INK = "#222222"
"""The colour of texts and marks."""
FAINT = "#666666"
"""The colour of texts below a title."""
EDGE = "#333333"
"""The colour of the edges of marks."""
LINE: dict[str, Any] = {"color": INK, "linewidth": 1, "linestyle": (0, (4, 3))}


@dataclass(frozen=True, slots=True)
class Look:
    """The colour and marker of a method."""

    label: str
    """The name in the legend."""
    colour: str
    """The colour as in HTML, such as "#1F77B4"."""
    marker: str
    """A marker of matplotlib, or the number of a variant, such as "$2$"."""

    @property
    def bar(self) -> dict[str, Any]:
        return {"facecolor": self.colour, "edgecolor": EDGE, "linewidth": 0.4}

    @property
    def is_numbered(self) -> bool:
        return self.marker.startswith("$")

    @property
    def shape(self) -> Any:
        """The marker for matplotlib. A number becomes the outlines of its digits."""
        if not self.is_numbered:
            return self.marker
        from matplotlib.path import Path
        from matplotlib.textpath import TextPath
        from matplotlib.transforms import Affine2D

        digits = TextPath((0, 0), self.marker.strip("$"))
        (left, bottom), (right, top) = digits.get_extents().get_points()
        to_middle = Affine2D().translate(-(left + right) / 2, -(bottom + top) / 2)
        # matplotlib scales a marker to its extents. This point gives all numbers the same size.
        far_right = Path([(_WIDE_NUMBER, 0)])
        return Path.make_compound_path(digits.transformed(to_middle), far_right)

    @property
    def point(self) -> dict[str, Any]:
        face = INK if self.is_numbered else self.colour
        edge = {"markerfacecolor": face, "markeredgecolor": EDGE, "markeredgewidth": 0.5}
        return {"color": self.colour, "marker": self.shape, **edge}


@dataclass(frozen=True)
class Plot:
    """A picture that is drawn at its first use, and saved in all formats."""

    name: str
    """The name of the file."""
    title: str
    """The heading above the picture."""
    alt: str
    """A description for readers who cannot see the picture."""
    caption: str
    """A text that says how to read the picture."""
    draw: Callable[[], Figure]
    """The function that draws the picture."""

    @cached_property
    def figure(self) -> Figure:
        """The drawing. A "$" in its texts does not begin a formula."""
        from matplotlib import rc_context

        with rc_context(PLAIN_TEXT):
            return self.draw()

    @cached_property
    def images(self) -> Images:
        return save(self.figure)

    @cached_property
    def pdf(self) -> bytes:
        """The picture as PDF, which only papers need."""
        _ = self.images  # makes the layout
        return save_pdf(self.figure)


def drawable(text: str) -> str:
    """Return the text with escapes for control characters and their pictures, which fonts lack."""
    return text.translate(_ESCAPES)


def looks(labels: Mapping[str, str]) -> dict[str, Look]:
    """Return the looks of methods by spelling. A method has the same colour in all reports.

    `labels` are the names of methods in tables, by spelling. Variants of a method, such as
    "pld:ngram=2", have its colour. Their markers are their numbers in the order of `labels`. A
    `Look` is a label, a colour and a marker of matplotlib.
    """
    names = [spelling.partition(":")[0] for spelling in labels]  # without options
    num_variants = Counter(names)  # by name
    num_seen = Counter[str]()  # variants so far, by name
    look_of = {}
    for name, (spelling, label) in zip(names, labels.items(), strict=True):
        num_seen[name] += 1
        variant_marker = f"${num_seen[name]}$"  # matplotlib draws the digits
        marker = variant_marker if num_variants[name] > 1 else _marker(name)
        # `drawable` escapes control characters.
        look_of[spelling] = Look(drawable(label), _colour(name), marker)
    return look_of


def _colour(name: str) -> str:
    """Return a method's colour, such as "#1F77B4", as declared or else from a hash of its name."""
    method = described().get(name)  # None for a method of a plug-in
    if method and method.colour:  # empty if it declares none
        return method.colour
    if name == BASELINE:
        return _BASELINE_COLOUR
    # The first two bytes of the name's hash, as numbers from 0 to 1.
    hue, share = (byte / 255 for byte in sha256(name.encode()).digest()[:2])
    lightness = 0.3 + 0.35 * share  # neither dark nor pale
    red_green_blue = hls_to_rgb(hue, lightness, 0.6)  # each 0 to 1; 0.6 is saturation
    return "#" + "".join(f"{round(255 * channel):02X}" for channel in red_green_blue)


def _marker(name: str) -> str:
    if name == BASELINE:
        return "h"
    methods = list(described())
    number = methods.index(name) if name in methods else sum(name.encode())
    return _MARKERS[number % len(_MARKERS)]


def shades(labels: Iterable[str]) -> dict[str, Look]:
    """Return the looks of lines by label, in the order of the labels. Later lines are lighter.

    A look is a label, a colour as in HTML, and a marker.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    distinct_labels = list(dict.fromkeys(labels))
    last_index = max(1, len(distinct_labels) - 1)  # 1 for a single label: no division by 0
    look_of = {}
    for i, label in enumerate(distinct_labels):
        lightness = 0.05 + 0.85 * i / last_index  # 0.05 to 0.9 of the colour map
        colour = to_hex(colormaps["cividis"](lightness))
        look_of[label] = Look(label, colour, _MARKERS[i % len(_MARKERS)])
    return look_of


def tiles(
    title: str,
    subtitle: str,
    num_axes: int,
    *,
    height: float,
    most_columns: int = 2,
    spare: float = 0.3,
    handles: Sequence[Any] = (),
    **shared: Any,
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with a title, a subtitle and a legend below the axes, and return the axes.

    Each of the `num_axes` axes has `height` inches, and `most_columns` or fewer are side by side.
    Hidden axes fill the last row, and are returned too. The figure is `WIDTH` inches wide. Its
    axes, head and legend leave `spare` inches of its height. `handles` are named in the legend.
    `shared` goes to `Figure.subplots`, for example as `sharex` and `sharey`.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # Lines of 118 characters, which fit into the figure. `drawable` escapes control characters.
    subtitle_lines = wrap(drawable(subtitle), 118)
    legend_size = _legend_size(handles)  # the number of its columns, and of its lines of text
    num_columns = min(most_columns, num_axes)
    num_rows = -(-num_axes // num_columns)  # rounded up
    # The height of the head in inches: 0.4 for the title, and 0.16 per line of the subtitle.
    head_inches = 0.4 + 0.16 * len(subtitle_lines)
    # The height of the figure in inches. A line of the legend takes 0.17.
    inches = spare + height * num_rows + head_inches + 0.17 * legend_size.num_lines
    below_head = (0, 0, 1, 1 - head_inches / inches)  # left, bottom, width, height as shares
    layout_engine = ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06, rect=below_head)
    figure = Figure(figsize=(WIDTH, inches), dpi=DPI, layout=layout_engine)
    title_style: Any = {"va": "top", "in_layout": False}  # the head has its own room
    # The positions of texts are shares of the figure's width and height.
    y_title = 1 - 0.07 / inches  # 0.07 inches below the top
    y_subtitle = 1 - 0.32 / inches
    figure.text(0.008, y_title, title, fontsize=12, color=INK, weight="bold", **title_style)
    wrapped_subtitle = "\n".join(subtitle_lines)
    figure.text(0.008, y_subtitle, wrapped_subtitle, fontsize=8.5, color=FAINT, **title_style)
    if handles:
        legend_style: Any = {"loc": "outside lower center", "frameon": False, "fontsize": 8.5}
        figure.legend(handles=handles, ncols=legend_size.num_columns, **legend_style)
    axes_list = list(figure.subplots(num_rows, num_columns, squeeze=False, **shared).ravel())
    for unused_axes in axes_list[num_axes:]:
        unused_axes.set_visible(False)
    return figure, axes_list


class _LegendSize(NamedTuple):
    """The room that a legend takes."""

    num_columns: int
    """The number of entries side by side."""
    num_lines: int
    """The number of lines of text."""


def _legend_size(handles: Sequence[Any]) -> _LegendSize:
    """Return the size of a legend with these handles, which is at most as wide as the figure."""
    labels = [str(handle.get_label()).splitlines() for handle in handles]
    if not labels:
        return _LegendSize(num_columns=0, num_lines=0)
    widest = max((len(line) for label in labels for line in label), default=0)
    most_columns = max(1, 110 // (widest + 7))  # 110 characters fit, 7 are a mark and its gaps
    num_rows = -(-len(labels) // most_columns)
    return _LegendSize(
        num_columns=-(-len(labels) // num_rows), num_lines=num_rows * max(map(len, labels))
    )


def frame(axes: Axes, title: str = "", *, x: str = "", y: str = "", grid: str = "y") -> None:
    """Draw the title, the labels and the grid lines of an axes.

    `x` and `y` are the labels. `grid` is the axis whose ticks have lines: "x", "y" or "both". The
    title is broken into lines, so that it does not reach the title of the axes to its right.
    """
    grid_spec = axes.get_gridspec()
    num_columns = grid_spec.ncols if grid_spec else 1  # axes side by side
    most_characters = 104 // num_columns - 4  # 104 fit into the figure, 4 are a gap
    # `drawable` escapes control characters.
    wrapped_title = "\n".join(wrap(drawable(title), most_characters))
    axes.set_title(wrapped_title, fontsize=9.5, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8.5)
    axes.grid(axis=grid, color="0.9", linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def points(shown: Iterable[Look], *, has_line: bool = True) -> list[Any]:
    """Return legend entries for points. With `has_line`, the points have lines through them."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"linestyle": "-" if has_line else "", "markersize": 7}
    return [
        Line2D([], [], label="\n".join(wrap(look.label, 28)), **style, **look.point)
        for look in shown
    ]


def error(value: Estimate) -> Any:
    """Return the distances from a number to its interval's ends, or None without an interval."""
    interval = interval_of(value)
    if interval is None:
        return None
    return [[value.value - interval.low], [interval.high - value.value]]
