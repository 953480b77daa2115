"""Plot speedup and mean accepted tokens over the values of a method's option."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from specbench.analysis.stats.estimates import Estimate
from specbench.report.formats import interval_of
from specbench.report.plots import style
from specbench.report.plots.style import INK, Look, Plot
from specbench.report.results import Report, RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAPTION = (
    "Points are means over the tasks, with their intervals. Ringed points are the Pareto "
    "front: no other point has both a higher speedup and more accepted tokens."
)
_MEETING = " Where lines meet, the earlier line has the larger points."

_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 15,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 1,
}
"""The style of the ring around a point on the Pareto front."""


@dataclass(frozen=True, slots=True)
class _Point:
    """A variant of a method, with its means over tasks."""

    setting: float
    """The value of the option."""
    label: str
    """The variant's name in tables."""
    speedup: Estimate
    """The speedup over vanilla."""
    mat: Estimate
    """The mean accepted tokens."""

    def is_beaten_by(self, other: _Point) -> bool:
        """True if `other` is at least as good in both numbers, and better in at least one."""
        is_slower = self.speedup.value < other.speedup.value
        is_shorter = self.mat.value < other.mat.value
        is_no_faster = self.speedup.value <= other.speedup.value
        is_no_longer = self.mat.value <= other.mat.value
        return is_no_faster and is_no_longer and (is_slower or is_shorter)


class _Sweep(NamedTuple):
    """An option of a method, with fixed values of the method's other options."""

    title: str
    """The title of the method."""
    option: str
    """The name of the option."""
    others: str
    """The method's other options, as a text that can be a key."""


class _Line(NamedTuple):
    """The points of a sweep."""

    label: str
    """The method's other options in words."""
    points: Sequence[_Point]
    """The points, in the order of the option's values."""


_Panels: TypeAlias = Mapping[str, Sequence[_Line]]
"""Lines by the heading of a run and temperature."""


def sweeps(report: Report) -> list[Plot]:
    """Return a plot for each numeric option that differs between variants of a method in a run.

    A sweep is an option of a method, with fixed values of the other options. It makes one line,
    whose points are variants of the method. `setting` is the number that the option has.
    """
    # Lines, by the method's title and the option, and then by the heading of a run and temperature.
    panels_by_plot: dict[tuple[str, str], dict[str, list[_Line]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for heading, run in report.panels:  # the results of a run at a temperature
        for sweep, points in _points(run).items():
            if len(points) > 1:
                points.sort(key=lambda point: point.setting)
                # The line's label has the other options, which all points share.
                line = _Line(_other_options(sweep.option, points[0]), points)
                panels_by_plot[sweep.title, sweep.option][heading].append(line)
    return [
        _plot(report, title, option, panels) for (title, option), panels in panels_by_plot.items()
    ]


def _points(run: RunResults) -> dict[_Sweep, list[_Point]]:
    """Return the points of a run by sweep: an option of a method, with fixed other options.

    A point is a variant of a method, with its value of the option (`setting`), its speedup and its
    MAT. A variant is in a sweep for each of its options that is a number. `run` has the results of
    a run at one temperature. Variants without a speedup or MAT are left out.
    """
    points_by_sweep: dict[_Sweep, list[_Point]] = defaultdict(list)
    header_by_method = run.source.info.methods  # by spelling, such as "pld:ngram=2"
    for method in run.methods:
        # The method's title and options, or None if the run's header does not list the method.
        header = header_by_method.get(method.method)
        speedup = method.overall.speedup  # means over tasks
        mat = method.overall.mat
        if not (header and isinstance(speedup, Estimate) and isinstance(mat, Estimate)):
            continue
        for option, setting in header.options.items():
            if isinstance(setting, int | float) and not isinstance(setting, bool):
                other_options = {
                    name: value for name, value in header.options.items() if name != option
                }
                # As a text, the other options can be a key.
                sweep = _Sweep(header.title, option, repr(other_options))
                point = _Point(setting, method.label, speedup, mat)
                points_by_sweep[sweep].append(point)
    return points_by_sweep


def _other_options(option: str, point: _Point) -> str:
    """Return the other options of a point's method, as in its label."""
    in_parentheses = point.label.partition(" (")[2].rstrip(")*")
    settings = in_parentheses.split(", ")
    others = [setting for setting in settings if setting.partition("=")[0] != option]
    return style.drawable(", ".join(others)) or "other options: default"


def _plot(report: Report, title: str, option: str, panels: _Panels) -> Plot:
    texts = [
        f"{heading}, {line.label}, {option}={point.setting:g}: {point.speedup.value:.2f} times "
        f"as fast, {point.mat.value:.2f} tokens per step"
        for heading, lines in panels.items()
        for line in lines
        for point in line.points
    ]
    heading = f"{title}: speedup and accepted tokens by {option}"
    has_several_lines = any(len(lines) > 1 for lines in panels.values())
    return Plot(
        name=f"sweep_{'_'.join(title.split())}_{option}",
        title=heading,
        alt=f"Line plot. {'; '.join(texts)}.",
        caption=_CAPTION + _MEETING if has_several_lines else _CAPTION,
        draw=partial(_draw, report, heading, option, panels),
    )


def _draw(report: Report, title: str, option: str, panels: _Panels) -> Figure:
    """Return the figure: a row per run and temperature, with speedup and MAT over an option.

    `option` is the name, and `panels` are the lines by the heading of a run and temperature. A
    point of a line is a variant of a method, and `setting` is its number of the option.
    """
    from matplotlib.lines import Line2D

    # The colour and marker of each line, by its label.
    look_of_line = style.shades(line.label for lines in panels.values() for line in lines)
    # an entry of the legend
    front_entry = Line2D([], [], label="Pareto front", linestyle="", **_RING)
    figure, axes_list = style.tiles(
        title,
        report.caption,  # the figure's subtitle
        2 * len(panels),  # the number of axes
        height=2.8,  # the height of the axes in inches
        handles=[*style.points(look_of_line.values()), front_entry],
    )
    x_label = style.drawable(option)
    for i, (heading, lines) in enumerate(panels.items()):
        left, right = axes_list[2 * i : 2 * i + 2]
        _draw_panel(left, lines, look_of_line, field="speedup")
        style.frame(left, heading, x=x_label, y="speedup (times)", grid="both")
        _draw_panel(right, lines, look_of_line, field="mat")
        style.frame(right, heading, x=x_label, y="mean accepted tokens", grid="both")
        ticks = sorted({point.setting for line in lines for point in line.points})
        for axes in (left, right):
            axes.margins(0.08, 0.12)
            axes.set_xticks(ticks)
    return figure


def _draw_panel(
    axes: Axes, lines: Sequence[_Line], look_of_line: Mapping[str, Look], *, field: str
) -> None:
    """Draw the speedup or the MAT over the option's values, with rings around the Pareto front.

    `field` is "speedup" or "mat". A line has the variants of a method that differ only in the
    option. The `setting` of a point is its value of the option, and the `label` of a line has the
    other options. `look_of_line` has the colour and marker for each label.
    """
    for line_number, line in enumerate(lines, 1):
        look = look_of_line[line.label]
        # Points get smaller, down to 6 for the last line, so that earlier points stay visible.
        marker_size = 14 - 8 * line_number / len(lines)
        settings = [point.setting for point in line.points]
        estimates = [getattr(point, field) for point in line.points]  # with intervals
        heights = [estimate.value for estimate in estimates]
        axes.plot(settings, heights, linewidth=1.2, ms=marker_size, **look.point)
        for setting, estimate in zip(settings, estimates, strict=True):
            if interval := interval_of(estimate):
                axes.vlines(setting, interval.low, interval.high, color=look.colour, linewidth=1)
    # The Pareto front: points that no other point beats in both speedup and MAT.
    front = _front([point for line in lines for point in line.points])
    front_settings = [point.setting for point in front]
    front_heights = [getattr(point, field).value for point in front]
    axes.plot(front_settings, front_heights, linestyle="", **_RING)


def _front(points: Sequence[_Point]) -> list[_Point]:
    """Return the points that no other point beats."""
    return [point for point in points if not any(map(point.is_beaten_by, points))]


PLOTS = ((4, sweeps),)
