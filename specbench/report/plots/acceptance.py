"""Plot of acceptance by depth of the guess."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from specbench.analysis.cells import CellMetrics
from specbench.analysis.metrics import BASELINE
from specbench.report.plots.style import Plot, frame, looks, points, tiles
from specbench.report.results import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLE = "Acceptance by depth"
_LEAST_STEPS = 20
"""Steps that must have reached a depth for its share to be drawn."""

_Panels = list[tuple[str, dict[str, CellMetrics]]]
"""Title of each panel, and the pooled cell of every method that accepted a guess."""


def positions(report: Report) -> Plot | None:
    """Acceptance by depth of the guess: given that all above was accepted, and of all steps."""
    found: _Panels = []
    for title, run in report.panels:
        pooled = {method.method: method.overall.pooled for method in run.methods}
        cells = {m: c for m, c in pooled.items() if m != BASELINE and c.acceptance_by_depth}
        if cells:
            found.append((title, cells))
    if not found:
        return None
    texts = [
        f"{title}, {looks(report.labels)[method].label}: "
        + ", ".join(
            f"{position.conditional.value:.0%}" for position in cell.acceptance_by_depth[:3]
        )
        for title, cells in found
        for method, cell in cells.items()
    ]
    return Plot(
        name="positions",
        title=_TITLE,
        alt="Line charts. Share of guesses accepted at depths 1, 2 and 3, given that all above "
        f"were: {'; '.join(texts)}.",
        caption="Left: the share of guesses at a depth that were accepted, given that all above "
        "were. Right: the share of all steps that accept at least that deep. Depths that fewer "
        f"than {_LEAST_STEPS} steps reached are left out.",
        draw=lambda: _draw_positions(report, found),
    )


def _draw_positions(report: Report, found: _Panels) -> Figure:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    drafting = {method for _, cells in found for method in cells}
    shown = {m: look for m, look in looks(report.labels).items() if m in drafting}
    room: dict[str, Any] = {"height": 2.9, "sharey": True, "sharex": "row"}
    room |= {"handles": points(shown.values())}
    drawn, every = tiles(_TITLE, report.caption, 2 * len(found), **room)
    parts = (("conditional", "accepted, if all above were"), ("unconditional", "of all steps"))
    pairs = product(found, parts)
    for axes, ((title, cells), (share, y)) in zip(every, pairs, strict=True):
        for method, cell in cells.items():
            known = [p for p in cell.acceptance_by_depth if p.num_reached >= _LEAST_STEPS]
            heights = [getattr(p, share).value for p in known]
            style = {**shown[method].point, "markersize": 5.5, "linewidth": 1.3}
            axes.plot([p.depth for p in known], heights, **style)
        name = title if share == "conditional" else ""
        frame(axes, name, x="depth of the guess (tokens below the last one)", y=y)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0, 1.04)
        axes.tick_params(labelleft=True)
    return drawn


PLOTS = ((6, positions),)
