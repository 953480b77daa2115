"""Plot mean accepted tokens by the position in answers and by the length of the context."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from specbench.analysis.stats.estimates import Estimate, Interval
from specbench.analysis.step_bins import Axis, StepBin
from specbench.report.formats import interval_of
from specbench.report.plots.point_names import Mark, legend_of, name_lines
from specbench.report.plots.style import Look, Plot, frame, looks, tiles
from specbench.report.results import MethodResults, Report, RunResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "Mean accepted tokens along answers"
_X_LABELS: dict[Axis, str] = {
    "position": "tokens of the answer before the step",
    "context": "tokens of prompt and answer before the step",
}
"""The labels of the x axes, by the quantity that they show."""
_LEAST_BINS = 2
"""The smallest number of bins that a line must have."""


def mat_along(report: Report) -> Plot | None:
    """Return the plot of MAT by position in the answer and by length of the context.

    It has two axes for each run and temperature. It is None if no method has two bins with numbers.
    """
    panels = [(title, run) for title, run in report.panels if any(map(_has_line, run.methods))]
    if not panels:
        return None
    return Plot(
        name="mat_along",
        title=_TITLE,
        alt="Line charts of mean accepted tokens by position in the answer and by context length. "
        f"By position: {'; '.join(_described(report, panels))}.",
        caption="Each point is the mean over the steps in a range of positions or lengths. Bars "
        "are 95 % intervals over prompts. Ranges with fewer than five prompts are left out.",
        draw=lambda: _draw_panels(report, panels),
    )


def _has_line(method: MethodResults) -> bool:
    return any(len(_line(method, axis)) >= _LEAST_BINS for axis in _X_LABELS)


def _line(method: MethodResults, axis: Axis) -> list[tuple[StepBin, Estimate]]:
    """Return the bins of a method on an axis that have a MAT, each with its MAT, in order."""
    return [
        (step_bin, step_bin.mat)
        for step_bin in method.step_bins
        if step_bin.axis == axis and isinstance(step_bin.mat, Estimate)
    ]


def _described(report: Report, panels: list[tuple[str, RunResults]]) -> list[str]:
    """Return the MAT of each method in its first and last range of positions, in words.

    `panels` are pairs of a heading with the run and temperature, and the results of the run there.
    Methods with fewer than `_LEAST_BINS` ranges are left out.
    """
    all_looks = looks(report.labels)  # the label, colour and marker of each method
    texts = []
    for title, run in panels:
        for method in run.methods:
            line = _line(method, "position")  # pairs of a range and its MAT, in rising order
            if len(line) >= _LEAST_BINS:
                ends = [
                    f"{mat.value:.2f} at {step_bin.range_text}"
                    for step_bin, mat in (line[0], line[-1])
                ]
                texts.append(f"{title}, {all_looks[method.method].label}: {', '.join(ends)}")
    return texts


def _draw_panels(report: Report, panels: list[tuple[str, RunResults]]) -> Figure:
    """Return the figure with a row of two axes per panel: MAT over positions, and over lengths.

    `panels` are pairs of a heading with the run and temperature, and the results of the run there.
    Both axes have a line per method that has at least `_LEAST_BINS` bins on them.
    """
    with_line = {method.method for _, run in panels for method in run.methods if _has_line(method)}
    all_looks = looks(report.labels)  # the label, colour and marker of each method
    shown_looks = {method: look for method, look in all_looks.items() if method in with_line}
    figure, axes_list = tiles(
        _TITLE,
        report.caption,  # the figure's subtitle
        2 * len(panels),  # the number of axes
        height=2.9,  # the height of the axes in inches
        handles=legend_of(shown_looks),
        sharey=True,
    )
    lines_of_axes = []  # pairs of axes and their lines by method
    for index, (title, run) in enumerate(panels):
        left, right = axes_list[2 * index : 2 * index + 2]
        by_position = _draw_lines(left, run, "position", shown_looks)
        frame(left, title, x=_X_LABELS["position"], y="MAT")
        by_context = _draw_lines(right, run, "context", shown_looks)
        frame(right, x=_X_LABELS["context"])
        right.tick_params(labelleft=True)  # matplotlib hides these labels if axes share y
        lines_of_axes += [(left, by_position), (right, by_context)]
    for axes, lines in lines_of_axes:
        name_lines(figure, axes, shown_looks, lines)  # a label beside the last mark of each line
    return figure


def _draw_lines(
    axes: Axes, run: RunResults, axis: Axis, look_of: dict[str, Look]
) -> dict[str, list[Mark]]:
    """Draw the MAT of each method over the bins of an axis as a line, and return the marks.

    A bin is a range of the number of tokens before a step. These are tokens of the answer if `axis`
    is "position", and of prompt and answer if it is "context". `look_of` has the colour and marker
    of each method. Methods without a look, or with fewer than `_LEAST_BINS` bins, are left out.
    The keys of the result are methods.
    """
    range_by_x: dict[float, str] = {}  # the labels of ticks, such as "32-63", by coordinate
    marks_by_method = {}
    for method in run.methods:
        line = _line(method, axis)  # pairs of a bin and its MAT, in rising order
        if method.method not in look_of or len(line) < _LEAST_BINS:
            continue
        # The upper ends of bins double, so their log2 spaces the marks evenly.
        xs = [math.log2(step_bin.high) for step_bin, _ in line]
        mats = [mat.value for _, mat in line]
        # without an interval, the bar has no length
        intervals = [interval_of(mat) or Interval(mat.value, mat.value) for _, mat in line]
        below = [mat - interval.low for mat, interval in zip(mats, intervals, strict=True)]
        above = [interval.high - mat for mat, interval in zip(mats, intervals, strict=True)]
        style: dict[str, Any] = {**look_of[method.method].point, "markersize": 5, "linewidth": 1.3}
        axes.errorbar(xs, mats, [below, above], elinewidth=0.8, **style)
        marks_by_method[method.method] = [*map(Mark, xs, mats)]
        ranges = [step_bin.range_text for step_bin, _ in line]
        range_by_x |= dict(zip(xs, ranges, strict=True))
    axes.set_xticks([*range_by_x], [*range_by_x.values()])
    return marks_by_method


PLOTS = ((7, mat_along),)
