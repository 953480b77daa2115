"""Speedup and mean accepted tokens against the values of a method's option."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from specbench.analysis.stats.estimates import Estimate
from specbench.report.formats import interval_of
from specbench.report.plots import style
from specbench.report.plots.style import INK, Plot
from specbench.report.results import Report, RunResults

if TYPE_CHECKING:
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
    """A value of the option, with the numbers over all tasks of the method of this label."""

    value: float
    label: str
    speedup: Estimate
    mat: Estimate

    def is_beaten_by(self, other: _Point) -> bool:
        mine, theirs = (self.speedup.value, self.mat.value), (other.speedup.value, other.mat.value)
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]


_Line: TypeAlias = tuple[str, Sequence[_Point]]
"""A setting of the other options, and its points in the order of the values."""
_Panels: TypeAlias = Mapping[str, Sequence[_Line]]
"""Lines by the title of a run and a temperature."""


def sweeps(report: Report) -> list[Plot]:
    """A plot for each option of a method that a run has with several numbers."""
    found: dict[tuple[str, str], dict[str, list[_Line]]] = defaultdict(lambda: defaultdict(list))
    for heading, run in report.panels:
        for (title, option, _), points in _points(run).items():
            if len(points) > 1:
                points.sort(key=lambda one: one.value)
                found[title, option][heading].append((_setting(option, points[0]), points))
    return [_plot(report, title, option, lines) for (title, option), lines in found.items()]


def _points(run: RunResults) -> dict[tuple[str, str, str], list[_Point]]:
    """The points of a run by the method's title, the option's name and the other options."""
    found: dict[tuple[str, str, str], list[_Point]] = defaultdict(list)
    headers = run.source.info.methods
    for method in run.methods:
        header, overall = headers.get(method.method), method.overall
        speedup, mat = overall.speedup, overall.mat
        if not (header and isinstance(speedup, Estimate) and isinstance(mat, Estimate)):
            continue
        for option, value in header.options.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = {name: v for name, v in header.options.items() if name != option}
                point = _Point(value, method.label, speedup, mat)
                found[header.title, option, repr(others)].append(point)
    return found


def _setting(option: str, point: _Point) -> str:
    """The other options of a point's method, as its label has them."""
    label = point.label.partition(" (")[2].rstrip(")*")
    others = ", ".join(one for one in label.split(", ") if one.partition("=")[0] != option)
    return style.drawable(others) or "other options: default"


def _plot(report: Report, title: str, option: str, lines: _Panels) -> Plot:
    texts = [
        f"{heading}, {setting}, {option}={one.value:g}: {one.speedup.value:.2f} times as "
        f"fast, {one.mat.value:.2f} tokens per step"
        for heading, several in lines.items()
        for setting, points in several
        for one in points
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

    shown = style.shades(setting for several in lines.values() for setting, _ in several)
    front = Line2D([], [], label="Pareto front", linestyle="", **_RING)
    handles = [*style.points(shown.values()), front]
    about = title, report.caption, 2 * len(lines)
    drawn, every_axes = style.tiles(*about, height=2.8, handles=handles)
    numbers = (("speedup", "speedup (times)"), ("mat", "mean accepted tokens"))
    pairs = product(lines.items(), numbers)
    for axes, ((heading, several), (name, y)) in zip(every_axes, pairs, strict=True):
        every = [one for _, points in several for one in points]
        best = [one for one in every if not any(map(one.is_beaten_by, every))]
        for i, (setting, points) in enumerate(several, 1):
            values = [one.value for one in points]
            heights = [getattr(one, name) for one in points]
            size = 14 - 8 * i / len(several)  # a line hides no point of an earlier one
            look = shown[setting]
            axes.plot(values, [one.value for one in heights], linewidth=1.2, ms=size, **look.point)
            for value, estimate in zip(values, heights, strict=True):
                if interval := interval_of(estimate):
                    axes.vlines(value, interval.low, interval.high, color=look.colour, linewidth=1)
        heights = [getattr(one, name).value for one in best]
        axes.plot([one.value for one in best], heights, linestyle="", **_RING)
        style.frame(axes, heading, x=style.drawable(option), y=y, grid="both")
        axes.margins(0.08, 0.12)
        axes.set_xticks(sorted({one.value for one in every}))
    return drawn


PLOTS = ((4, sweeps),)
