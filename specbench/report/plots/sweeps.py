"""Speedup and mean accepted tokens against the values of a method's option."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from specbench.analysis.stats.bootstrap import Estimate
from specbench.report.formats import interval_of
from specbench.report.plots import style
from specbench.report.plots.style import INK, Look, Plot
from specbench.report.report import Report
from specbench.report.results import MethodResults, RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAPTION = (
    "Points are means over the tasks, with their intervals. Ringed points are the Pareto "
    "front: no other point has both a higher speedup and more accepted tokens."
)
_MEETING = " Where lines meet, the points of the earlier one are larger."

_RING: dict[str, Any] = {"marker": "o", "markersize": 15, "markerfacecolor": "none"}
_RING |= {"markeredgecolor": INK, "markeredgewidth": 1}
"""Mark of a point of the front."""


@dataclass(frozen=True, slots=True)
class _Point:
    """A value of the option, with the method's numbers over all tasks."""

    value: float
    speedup: Estimate
    mat: Estimate

    def is_beaten_by(self, other: _Point) -> bool:
        mine, theirs = (self.speedup.value, self.mat.value), (other.speedup.value, other.mat.value)
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]


@dataclass(frozen=True, slots=True)
class _Line:
    """The points of one setting of the other options, in the order of the values."""

    label: str
    points: Sequence[_Point]


_Panels: TypeAlias = Mapping[str, Sequence[_Line]]
"""Lines by the title of a run and a temperature."""


def sweeps(report: Report) -> list[Plot]:
    """A plot for each option of a method that a run has with several numbers."""
    found: dict[tuple[str, str], dict[str, list[_Line]]] = defaultdict(lambda: defaultdict(list))
    for heading, run in style.panels(report.results):
        for (title, option, _), members in _members(report, run).items():
            line = _line(option, members)
            if len(line.points) > 1:
                found[title, option][heading].append(line)
    return [_plot(report, title, option, lines) for (title, option), lines in found.items()]


def _members(
    report: Report, run: RunResults
) -> dict[tuple[str, str, str], list[tuple[float, MethodResults]]]:
    """The values of an option with their methods, by the method's title, the option's name and
    the values of the other options.
    """
    found: dict[tuple[str, str, str], list[tuple[float, MethodResults]]] = defaultdict(list)
    headers = report.sources[run.run].info.methods
    for method in run.methods:
        if (header := headers.get(method.method)) is None:
            continue
        for option, value in header.options.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = {name: v for name, v in header.options.items() if name != option}
                found[header.title, option, repr(others)].append((value, method))
    return found


def _line(option: str, members: Sequence[tuple[float, MethodResults]]) -> _Line:
    found = [
        _Point(value, method.overall.speedup, method.overall.mat)
        for value, method in sorted(members, key=lambda member: member[0])
        if isinstance(method.overall.speedup, Estimate) and isinstance(method.overall.mat, Estimate)
    ]
    label = members[0][1].label.partition(" (")[2].rstrip(")*")
    others = ", ".join(one for one in label.split(", ") if one.partition("=")[0] != option)
    return _Line(style.drawable(others) or "other options: default", found)


def _plot(report: Report, title: str, option: str, lines: _Panels) -> Plot:
    texts = [
        f"{heading}, {line.label}, {option}={one.value:g}: {one.speedup.value:.2f} times as "
        f"fast, {one.mat.value:.2f} tokens per step"
        for heading, several in lines.items()
        for line in several
        for one in line.points
    ]
    heading = f"{title}: speedup and accepted tokens by {option}"
    return Plot(
        name=f"sweep_{'_'.join(title.split())}_{option}",
        title=heading,
        alt=f"Line plot. {'; '.join(texts)}.",
        caption=_CAPTION + _MEETING * any(len(several) > 1 for several in lines.values()),
        draw=partial(_draw, report, heading, option, lines),
    )


def _draw(report: Report, title: str, option: str, lines: _Panels) -> Figure:
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(line.label for several in lines.values() for line in several))
    named = zip(labels, style.shades(len(labels)), strict=True)
    shown = {label: replace(look, label=label) for label, look in named}
    front = Line2D([], [], label="Pareto front", linestyle="", **_RING)
    room: dict[str, Any] = {"most_columns": 2, "height": 2.8}
    room |= {"handles": [*style.points(shown.values()), front]}
    drawn, every_axes = style.tiles(title, report.results.caption, 2 * len(lines), **room)
    for i, (heading, several) in enumerate(lines.items()):
        every = [one for line in several for one in line.points]
        best = [one for one in every if not any(map(one.is_beaten_by, every))]
        for axes, name, y in (
            (every_axes[2 * i], "speedup", "speedup (times)"),
            (every_axes[2 * i + 1], "mat", "mean accepted tokens"),
        ):
            for i, line in enumerate(several, 1):
                size = 14 - 8 * i / len(several)  # a line hides no point of an earlier one
                _draw_line(axes, line, name, shown[line.label], size)
            heights = [getattr(one, name).value for one in best]
            axes.plot([one.value for one in best], heights, linestyle="", **_RING)
            style.frame(axes, heading, x=style.drawable(option), y=y, grid="both")
            axes.margins(0.08, 0.12)
            axes.set_xticks(sorted({one.value for one in every}))
    return drawn


def _draw_line(axes: Axes, line: _Line, name: str, look: Look, size: float) -> None:
    values = [one.value for one in line.points]
    heights = [getattr(one, name) for one in line.points]
    axes.plot(values, [one.value for one in heights], linewidth=1.2, ms=size, **look.point)
    for value, estimate in zip(values, heights, strict=True):
        if interval := interval_of(estimate):
            axes.vlines(value, interval.low, interval.high, color=look.colour, linewidth=1)


PLOTS = ((4, sweeps),)
