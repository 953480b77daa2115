"""Write the names of methods beside their points, so that no name covers a name or a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.report.plots.style import FAINT, INK, Look, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

MOST_NAMED = 14
"""The largest number of methods whose points have names. If there are more, they have a legend."""
_GAP = 6.0
"""The typographic points between a mark and its name."""
_LINE = 9.5
"""The typographic points from one line of names to the next."""
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
"""The style of a name, with a line to its mark."""


class _Place(NamedTuple):
    """A place for a name beside its mark."""

    side: int
    """1 is right of the mark, and -1 is left of it."""
    lines: float
    """The number of text lines above the mark. It is negative below the mark."""


BESIDE = [
    _Place(side, sign * half_lines / 2)
    for half_lines in range(24)
    for sign in (1, -1)
    for side in (1, -1)
]
"""Places right and left of a mark, with the nearest first."""
RIGHT = [place for place in BESIDE if place.side > 0]
"""Places right of a mark, with the nearest first."""
_ROOM = 0.17
"""The share of the axis that is added for names to the right of the last marks."""


class Mark(NamedTuple):
    """A point in data coordinates."""

    x: float
    y: float


def short_names(looks: Mapping[str, Look]) -> dict[str, str]:
    """Return the names of methods without settings. Variants have the numbers of their markers."""
    titles = {method: look.label.partition(" (")[0] for method, look in looks.items()}
    return {
        method: f"{titles[method]} {look.marker.strip('$')}" if look.is_numbered else titles[method]
        for method, look in looks.items()
    }


def legend_of(looks: Mapping[str, Look], *, has_line: bool = True) -> list[Any]:
    """Return the entries of a legend. With `has_line`, its points have lines through them.

    The points of variants have numbers as names, which a legend explains. If there are too many
    methods to name their points, the legend has all methods.
    """
    is_complete = len(looks) > MOST_NAMED
    explained = [look for look in looks.values() if look.is_numbered or is_complete]
    return points(explained, has_line=has_line)


def name_lines(
    figure: Figure,
    axes: Axes,
    looks: Mapping[str, Look],
    lines: Mapping[str, Sequence[Mark]],
    places: Sequence[_Place] = RIGHT,
) -> None:
    """Write the name of each method beside the last mark of its line.

    The keys of `looks` and `lines` are methods. The marks of a line go from left to right. If names
    are on the right, the axis is made longer.
    """
    # the end of the longer axis as x and y in pixels
    right_end = axes.transAxes.transform((1 + _ROOM, 0))
    if len(looks) <= MOST_NAMED and places is RIGHT:
        axes.set_xlim(right=axes.transData.inverted().transform(right_end)[0])
    drawn = {method: line for method, line in lines.items() if line}
    last_marks = {method: line[-1] for method, line in drawn.items()}
    other_marks = [mark for line in drawn.values() for mark in line[:-1]]
    name_methods(figure, axes, looks, last_marks, other_marks, places)


def name_methods(
    figure: Figure,
    axes: Axes,
    looks: Mapping[str, Look],
    marks: Mapping[str, Mark],
    other_marks: Sequence[Mark] = (),
    places: Sequence[_Place] = BESIDE,
) -> None:
    """Write the name of each method beside its mark, where it covers no other name and no mark.

    `looks` has the label, colour and marker of each method, and `marks` has its point. Names do not
    cover `other_marks` either. A name gets the first free one of the `places`, or the first place
    if none is free. A stroke connects a name with its mark if their heights differ by a line of
    text or more. If there are too many `looks`, nothing is written. The figure is laid out first,
    since sizes are measured in pixels. Everything else must already be drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if len(looks) > MOST_NAMED:
        return  # the legend has the names
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    renderer = FigureCanvasAgg(figure).get_renderer()
    pixels_per_point = figure.dpi / 72  # a typographic point is 1/72 inch
    line_height = _LINE * pixels_per_point
    mark_radius = _MARK * pixels_per_point
    # The boxes of all marks and texts, in pixels.
    centres = axes.transData.transform([*marks.values(), *other_marks])  # [marks, x and y]
    taken_boxes = [
        *(_box(x, y, mark_radius, mark_radius) for x, y in centres),
        *(text.get_window_extent(renderer) for text in axes.texts),
    ]
    axes_box = axes.get_window_extent(renderer)
    names = short_names(looks)
    in_pixels = {method: Mark(*axes.transData.transform(mark)) for method, mark in marks.items()}
    # The height of each name's middle in pixels. A place moves the name up or down by its `lines`.
    start_heights = _spread(in_pixels, line_height, axes_box.y0 + line_height / 2)
    # from the highest to the lowest
    for method in sorted(marks, key=lambda method: -marks[method].y):
        text = axes.annotate(names[method], marks[method], **_NAME)
        text_box = text.get_window_extent(renderer)
        mark = in_pixels[method]
        best_place = places[0]  # if none is free
        for place in places:
            middle_x = mark.x + place.side * (_GAP * pixels_per_point + text_box.width / 2)
            middle_y = start_heights[method] + place.lines * line_height
            box = _box(middle_x, middle_y, text_box.width / 2, text_box.height / 2)
            is_inside = axes_box.contains(*box.min) and axes_box.contains(*box.max)
            if is_inside and not any(map(box.overlaps, taken_boxes)):
                best_place = place
                taken_boxes.append(box)
                break
        # The typographic points from the mark up to the name, which are negative for a lower name.
        start_offset = (start_heights[method] - mark.y) / pixels_per_point
        offset = start_offset + best_place.lines * _LINE
        text.set_position((best_place.side * _GAP, offset))
        text.set_horizontalalignment("left" if best_place.side > 0 else "right")
        if text.arrow_patch and abs(offset) < _LINE:
            text.arrow_patch.set_visible(False)  # the stroke to its mark


def _spread(marks: Mapping[str, Mark], gap: float, lowest: float) -> dict[str, float]:
    """Return the heights of names: near their marks, but apart from names at the same x.

    Names of marks at the same x keep the order of their marks, and are at least `gap` apart. No
    name is below `lowest`. The heights are by method. Marks, heights and gaps are in pixels.
    """
    heights = {}
    for x in {round(mark.x) for mark in marks.values()}:
        # The methods with marks at this x, from the highest mark to the lowest.
        column = [method for method, mark in marks.items() if round(mark.x) == x]
        column.sort(key=lambda method: -marks[method].y)
        # Name i of a column is at height level_i - i * gap, so names are `gap` apart if levels do
        # not rise. `mark_levels` are the levels of names exactly beside their marks, which may
        # rise. The nearest levels to these that do not rise are, by antitonic regression,
        #     level_i = min over a <= i of max over b >= i of mean(mark_levels[a..b])
        ranks = range(len(column))
        mark_levels = [marks[method].y + i * gap for i, method in enumerate(column)]
        for i, method in enumerate(column):
            # A row for each a, with a column for each b.
            means = [[np.mean(mark_levels[a : b + 1]) for b in ranks[i:]] for a in ranks[: i + 1]]
            least_height = lowest + (len(column) - 1 - i) * gap  # leaves room for the names below
            heights[method] = max(float(min(map(max, means))) - i * gap, least_height)
    return heights


def _box(x: float, y: float, half_width: float, half_height: float) -> Bbox:
    from matplotlib.transforms import Bbox

    return Bbox.from_extents(x - half_width, y - half_height, x + half_width, y + half_height)
