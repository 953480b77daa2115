"""Plot of acceptance by depth of the guess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specbench.analysis.cells import CellMetrics
from specbench.analysis.metrics import BASELINE
from specbench.report.plots.style import Look, Plot, figure, frame, looks, panels, points
from specbench.report.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST_STEPS = 20
"""Steps that must have reached a depth for its share to be drawn."""

_Panels = list[tuple[str, dict[str, CellMetrics]]]


def _cells(report: Report) -> _Panels:
    """Title of each panel, and the pooled cell of every method that accepted a guess."""
    found = []
    for title, run in panels(report.results):
        pooled = {method.method: method.overall.pooled for method in run.methods}
        cells = {m: c for m, c in pooled.items() if m != BASELINE and c.acceptance_by_depth}
        if cells:
            found.append((title, cells))
    return found


def positions(report: Report) -> Plot | None:
    """Acceptance by depth of the guess: given that all above was accepted, and of all steps."""
    if not (found := _cells(report)):
        return None
    texts = [
        f"{title}, {looks(report.results)[method].label}: "
        + ", ".join(
            f"{position.conditional.value:.0%}" for position in cell.acceptance_by_depth[:3]
        )
        for title, cells in found
        for method, cell in cells.items()
    ]
    return Plot(
        name="positions",
        title="Acceptance by depth",
        alt="Line charts. Share of guesses accepted at depths 1, 2 and 3, given that all above "
        f"were: {'; '.join(texts)}.",
        caption="Left: the share of guesses at a depth that were accepted, given that all above "
        "were. Right: the share of all steps that accept at least that deep. Depths that fewer "
        f"than {_LEAST_STEPS} steps reached are left out.",
        draw=lambda: _draw_positions(report, found),
    )


def _draw_positions(report: Report, found: _Panels) -> Figure:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    shown: Mapping[str, Look] = {
        m: look
        for m, look in looks(report.results).items()
        if any(m in cells for _, cells in found)
    }
    height = 0.3 + 2.9 * len(found)
    handles = points(shown.values())
    drawn = figure("Acceptance by depth", report.results.caption, height, handles)
    grid = drawn.subplots(len(found), 2, squeeze=False, sharey=True, sharex="row")
    for line, (title, cells) in zip(grid, found, strict=True):
        for method, cell in cells.items():
            known = [p for p in cell.acceptance_by_depth if p.num_reached >= _LEAST_STEPS]
            depths = [p.depth for p in known]
            style = {**shown[method].point, "markersize": 5.5, "linewidth": 1.3}
            line[0].plot(depths, [p.conditional.value for p in known], **style)
            line[1].plot(depths, [p.unconditional.value for p in known], **style)
        for axes, y in zip(line, ("accepted, if all above were", "of all steps"), strict=True):
            name = title if axes is line[0] else ""
            frame(axes, name, x="depth of the guess (tokens below the last one)", y=y)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_ylim(0, 1.04)
            axes.tick_params(labelleft=True)
    return drawn


PLOTS = ((6, positions),)
