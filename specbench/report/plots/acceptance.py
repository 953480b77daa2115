"""Plot the acceptance of draft tokens by their depth in the draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.analysis.cells import CellMetrics
from specbench.analysis.metrics import BASELINE
from specbench.report.plots.point_names import Mark, legend_of, name_lines
from specbench.report.plots.style import Look, Plot, frame, looks, tiles
from specbench.report.results import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE = "Acceptance by depth"
_LEAST_STEPS = 20
"""The smallest number of steps that must have reached a depth for its share to be drawn."""
_DEPTH = "depth of the draft token (1 is the first of a draft)"
"""The label of the axis with depths."""


class _Panel(NamedTuple):
    """The contents of two adjacent axes."""

    title: str
    """The run and its temperature."""
    cells: dict[str, CellMetrics]
    """The metrics over all tasks of the methods that accepted a draft token, by method."""


def positions(report: Report) -> Plot | None:
    """Return the plot of acceptance by depth in the draft, with two axes per run and temperature.

    Depth 1 is the first token of a draft. The left axes are about the steps that accepted draft
    tokens at all smaller depths, and show the share of them that also accepted one at this depth. A
    step whose draft ends before this depth did not. The right axes show the share of all steps that
    accepted a draft token at the depth. The result is None if no method accepted a draft token.
    """
    panels = []  # a title and metrics by method, for each run and temperature
    # A heading with the run and temperature, and the results of the run there.
    for title, run in report.panels:
        # The metrics over all tasks, by method.
        pooled_cells = {method.method: method.overall.pooled for method in run.methods}
        # `acceptance_by_depth` is empty for a method that accepted no draft token.
        cells = {
            method: cell
            for method, cell in pooled_cells.items()
            if method != BASELINE and cell.acceptance_by_depth
        }
        if cells:
            panels.append(_Panel(title, cells))
    if not panels:
        return None
    return Plot(
        name="positions",
        title=_TITLE,
        alt="Line charts. Of the steps that accepted a draft token at all smaller depths, the "
        "share that accept one at depths 1, 2 and 3: "
        f"{'; '.join(_described(report, panels))}.",
        caption="Left: of the steps that accepted a draft token at all smaller depths, the share "
        "that also accepted one at this depth. Right: the share of all steps that accepted the "
        f"draft to this depth or deeper. Depths reached by fewer than {_LEAST_STEPS} steps are "
        "left out.",
        draw=lambda: _draw_positions(report, panels),
    )


def _described(report: Report, panels: list[_Panel]) -> list[str]:
    """Return the shares accepted at depths 1, 2 and 3 in words, for each run, temperature and
    method.
    """
    all_looks = looks(report.labels)  # the label, colour and marker of each method
    texts = []
    for title, cells in panels:
        for method, cell in cells.items():
            shares = [
                f"{depth.conditional.value:.0%}"
                for depth in cell.acceptance_by_depth[:3]
                if depth.num_reached >= _LEAST_STEPS  # these are drawn
            ]
            texts.append(f"{title}, {all_looks[method].label}: {', '.join(shares)}")
    return texts


def _draw_positions(report: Report, panels: list[_Panel]) -> Figure:
    """Return the figure of the shares of draft tokens that are accepted at each depth of a draft.

    A panel is a run at a temperature. It has a title, and the metrics of methods over all tasks. It
    becomes a row of two axes, for the conditional and the unconditional shares. Each axes has a
    line per method.
    """
    drafting = {method for panel in panels for method in panel.cells}
    all_looks = looks(report.labels)  # the label, colour and marker of each method
    shown_looks = {method: look for method, look in all_looks.items() if method in drafting}
    figure, axes_list = tiles(
        _TITLE,
        report.caption,  # the figure's subtitle
        2 * len(panels),  # the number of axes
        height=2.9,  # the height of the axes in inches
        handles=legend_of(shown_looks),
        sharey=True,
        sharex="row",
    )
    lines_of_axes = []  # pairs of axes and their lines by method
    for i, panel in enumerate(panels):
        left, right = axes_list[2 * i : 2 * i + 2]
        conditional = _draw_shares(left, panel.cells, shown_looks, kind="conditional")
        frame(left, panel.title, x=_DEPTH, y="accepted, given all earlier tokens")
        unconditional = _draw_shares(right, panel.cells, shown_looks, kind="unconditional")
        frame(right, x=_DEPTH, y="of all steps")
        lines_of_axes += [(left, conditional), (right, unconditional)]
    for axes, lines in lines_of_axes:
        name_lines(figure, axes, shown_looks, lines)
    return figure


def _draw_shares(
    axes: Axes, cells: dict[str, CellMetrics], look_of: dict[str, Look], *, kind: str
) -> dict[str, list[Mark]]:
    """Draw a line per method, with the share of steps that accept a draft token at each depth.

    `kind` is "conditional" for the share of the steps that accepted draft tokens at all smaller
    depths, or "unconditional" for the share of all steps. `cells` has the metrics over all tasks,
    and `look_of` the colours and markers, both by method. Depth 1 is the first token of a draft.
    Depths that fewer than `_LEAST_STEPS` steps reached (`num_reached`) are left out. Returns the
    points of each line by method.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    lines = {}
    for method, cell in cells.items():
        acceptances = [
            acceptance
            for acceptance in cell.acceptance_by_depth
            if acceptance.num_reached >= _LEAST_STEPS
        ]
        depths = [acceptance.depth for acceptance in acceptances]
        shares = [getattr(acceptance, kind).value for acceptance in acceptances]  # from 0 to 1
        style: dict[str, Any] = {**look_of[method].point, "markersize": 5.5, "linewidth": 1.3}
        axes.plot(depths, shares, **style)
        lines[method] = [*map(Mark, depths, shares)]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(0, 1.04)  # room for markers at 100 %
    axes.tick_params(labelleft=True)  # matplotlib hides these labels if axes share y
    return lines


PLOTS = ((6, positions),)
