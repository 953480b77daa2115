"""Names of methods beside their points, placed so that no name covers another or a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.report.plots.style import FAINT, INK, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

MOST_NAMED = 14
"""Most methods whose points have names; more methods have a legend."""
_GAP = 6.0
"""Typographic points between a mark and its name."""
_LINE = 9.5
"""Typographic points from one line of names to the next."""
_MARK = 4.0
"""Half the size of a mark in typographic points."""
_NAME: dict[str, Any] = {
    "xytext": (0, 0),
    "textcoords": "offset points",
    "fontsize": 8,
    "color": INK,
    "va": "center",
    "zorder": 6,
    "in_layout": False,
    "arrowprops": {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkB": 3},
}
"""The text of a name, with a line to its mark."""


class _Place(NamedTuple):
    """A place for a name beside its mark."""

    side: int
    """1: right of the mark; -1: left."""
    lines: float
    """Lines above the mark."""


BESIDE = [
    _Place(side, sign * half_lines / 2)
    for half_lines in range(24)
    for sign in (1, -1)
    for side in (1, -1)
]
"""Places right and left of a mark, the nearest first."""
RIGHT = [place for place in BESIDE if place.side > 0]
"""Places right of a mark, the nearest first."""
_ROOM = 0.17
"""The share of an axis that is added for names right of the last marks."""


class Mark(NamedTuple):
    """A point in data coordinates."""

    x: float
    y: float


def short_names(looks: Mapping[str, Look]) -> dict[str, str]:
    """The names of methods without settings; variants have the numbers of their markers."""
    titles = {method: look.label.partition(" (")[0] for method, look in looks.items()}
    return {
        method: f"{titles[method]} {look.marker.strip('$')}" if look.is_numbered else titles[method]
        for method, look in looks.items()
    }


def legend_of(looks: Mapping[str, Look], entries: Sequence[Any]) -> list[Any]:
    """The entries of a legend, out of `entries`, which has one for each of `looks`.

    The points of variants have numbers as names, so a legend explains them. If there are too many
    methods to name their points, the legend has all of them.
    """
    return [
        entry
        for look, entry in zip(looks.values(), entries, strict=True)
        if look.is_numbered or len(looks) > MOST_NAMED
    ]


def name_lines(
    figure: Figure,
    axes: Axes,
    looks: Mapping[str, Look],
    lines: Mapping[str, Sequence[Mark]],
    places: Sequence[_Place] = RIGHT,
) -> None:
    """Write the name of each method beside the last mark of its line, which gets room for it."""
    right = axes.transAxes.transform((1 + _ROOM, 0))
    if len(looks) <= MOST_NAMED and places is RIGHT:
        axes.set_xlim(right=axes.transData.inverted().transform(right)[0])
    drawn = {method: line for method, line in lines.items() if line}
    ends = {method: line[-1] for method, line in drawn.items()}
    others = [mark for line in drawn.values() for mark in line[:-1]]
    name_methods(figure, axes, looks, ends, others, places)


def name_methods(
    figure: Figure,
    axes: Axes,
    looks: Mapping[str, Look],
    marks: Mapping[str, Mark],
    others: Sequence[Mark] = (),
    places: Sequence[_Place] = BESIDE,
) -> None:
    """Write the name of each method beside its mark, if there are not too many `looks`.

    A name is at the first of the `places` where it covers no other name, no mark, and none of the
    `others`; one that is above or below its mark has a line to it. The figure is laid out first,
    since room is counted in pixels: everything else must be drawn already.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if len(looks) > MOST_NAMED:
        return
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    renderer = FigureCanvasAgg(figure).get_renderer()
    pixel = figure.dpi / 72  # pixels of a typographic point
    half = _MARK * pixel
    positions = axes.transData.transform([*marks.values(), *others])  # in pixels
    taken = [_box(x, y, half, half) for x, y in positions]
    taken += [text.get_window_extent(renderer) for text in axes.texts]
    inside = axes.get_window_extent(renderer)
    names = short_names(looks)
    in_pixels = {method: Mark(*axes.transData.transform(mark)) for method, mark in marks.items()}
    starts = _spread(in_pixels, _LINE * pixel, inside.y0 + _LINE * pixel / 2)
    for method in sorted(marks, key=lambda method: -marks[method].y):
        text = axes.annotate(names[method], marks[method], **_NAME)
        size = text.get_window_extent(renderer)
        x, y = in_pixels[method]
        moved = (starts[method] - y) / pixel  # typographic points
        best_place = places[0]  # if none is free
        for place in places:
            middle_x = x + place.side * (_GAP * pixel + size.width / 2)
            middle_y = starts[method] + place.lines * _LINE * pixel
            box = _box(middle_x, middle_y, size.width / 2, size.height / 2)
            if _is_within(box, inside) and not any(_overlap(box, other) for other in taken):
                best_place = place
                taken.append(box)
                break
        above = moved + best_place.lines * _LINE
        text.set_position((best_place.side * _GAP, above))
        text.set_horizontalalignment("left" if best_place.side > 0 else "right")
        if text.arrow_patch and abs(above) < _LINE:
            text.arrow_patch.set_visible(False)


def _spread(marks: Mapping[str, Mark], gap: float, lowest: float) -> dict[str, float]:
    """The height of each name in pixels, near its mark. Names at one x keep the order of their
    marks and at least this gap from each other, and none is below `lowest`.
    """
    heights = {}
    for x in {round(mark.x) for mark in marks.values()}:
        column = [method for method, mark in marks.items() if round(mark.x) == x]
        column.sort(key=lambda method: -marks[method].y)
        # height i = level i - i * gap, with levels that do not rise. Of all such levels, the
        # nearest to the marks' are (antitonic regression)
        #     min over a <= i of max over b >= i of mean(levels[a..b])
        ranks = range(len(column))
        levels = [marks[method].y + i * gap for i, method in enumerate(column)]
        for i, method in enumerate(column):
            means = [[np.mean(levels[a : b + 1]) for b in ranks[i:]] for a in ranks[: i + 1]]
            least = lowest + (len(column) - 1 - i) * gap
            heights[method] = max(float(min(map(max, means))) - i * gap, least)
    return heights


def _box(x: float, y: float, half_width: float, half_height: float) -> Bbox:
    from matplotlib.transforms import Bbox

    return Bbox.from_extents(x - half_width, y - half_height, x + half_width, y + half_height)


def _is_within(box: Bbox, outer: Bbox) -> bool:
    return bool(
        box.x0 >= outer.x0 and box.x1 <= outer.x1 and box.y0 >= outer.y0 and box.y1 <= outer.y1
    )


def _overlap(box: Bbox, other: Bbox) -> bool:
    return bool(box.x0 < other.x1 and other.x0 < box.x1 and box.y0 < other.y1 and other.y0 < box.y1)
