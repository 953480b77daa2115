"""Plots of accepted tokens: per step as a histogram, and by depth of the guess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from specbench.analysis.cells import CellMetrics
from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.bootstrap import Estimate
from specbench.report.plots.style import (
    FAINT,
    INK,
    Look,
    Plot,
    figure,
    frame,
    looks,
    name_rows,
    panels,
    points,
    rows_of_axes,
)
from specbench.report.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_STEPS = 20
"""Steps that must have reached a depth for its share to be drawn."""
_MOST_LENGTH = 16
"""Longest step with a bar of its own, in tokens."""
_BAR_HEIGHT = 0.66

_Panels = list[tuple[str, dict[str, CellMetrics]]]


def _cells(report: Report) -> _Panels:
    """Title of each panel, and the pooled cell of every method that drafts."""
    found = []
    for panel in panels(report.results):
        pooled = {method.method: method.overall.pooled for method in panel.run.methods}
        cells = {m: c for m, c in pooled.items() if m != BASELINE and c.accept_histogram}
        if cells:
            found.append((panel.title, cells))
    return found


def histogram(report: Report) -> Plot | None:
    """The share of steps by the tokens that they emitted, a row of bars per method."""
    found = _cells(report)
    if not found:
        return None
    texts = [
        f"{title}, {looks(report.results)[method].label}: "
        f"{cell.accept_histogram.get(1, 0) / cell.num_steps:.0%} of steps emit one token, the most "
        f"is {max(cell.accept_histogram)}"
        for title, cells in found
        for method, cell in cells.items()
    ]
    return Plot(
        name="accept_lengths",
        title="Tokens per step",
        alt=f"Histograms, a row per method. {'; '.join(texts)}.",
        caption="The share of steps, over all tasks, by the number of tokens that they emitted: "
        "the accepted guesses and the one that the target adds. A step of one token accepted "
        "nothing. Each row has its own scale; the triangle is the mean.",
        draw=lambda: _draw_histogram(report, found),
    )


def _draw_histogram(report: Report, found: _Panels) -> Figure:
    rows = [len(cells) for _, cells in found]
    drawn = figure("Tokens per step", report.results.caption, sum(0.75 + 0.52 * n for n in rows))
    lengths = [max(cell.accept_histogram) for _, cells in found for cell in cells.values()]
    longest, shown = min(_MOST_LENGTH, max(lengths)), looks(report.results)
    for axes, (title, cells) in zip(rows_of_axes(drawn, rows), found, strict=True):
        for i, (method, cell) in enumerate(cells.items()):
            _draw_shares(axes, cell, -i, longest=longest, look=shown[method])
        name_rows(axes, [shown[method] for method in cells])
        names = [str(length) for length in range(1, longest + 1)]
        if any(max(cell.accept_histogram) > longest for cell in cells.values()):
            names[-1] += "+"
        axes.set_xticks(range(1, longest + 1), names)
        axes.set_xlim(0.4, longest + 0.6)
        axes.set_ylim(0.88 - len(cells), 0.95)
        words = "tokens emitted by a step (each row has its own scale; the triangle is the mean)"
        frame(axes, title, x=words, grid="x")
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
    return drawn


def _draw_shares(axes: Axes, cell: CellMetrics, base: int, *, longest: int, look: Look) -> None:
    """The bars of one method above y = `base`; the longest and all beyond share a bar."""
    shares = [0.0] * longest
    for length, count in cell.accept_histogram.items():
        shares[min(length, longest) - 1] += count / cell.num_steps
    heights = [share / max(shares) * _BAR_HEIGHT for share in shares]
    axes.bar(range(1, longest + 1), heights, width=0.86, bottom=base, **look.bar)
    for length, (share, height) in enumerate(zip(shares, heights, strict=True), 1):
        if share >= 0.005:
            top = base + height + 0.03
            axes.text(length, top, f"{share:.0%}", fontsize=6.5, ha="center", color=FAINT)
    axes.axhline(base, color="0.75", linewidth=0.6)
    if isinstance(cell.mat, Estimate):
        mean = min(cell.mat.value, longest + 0.5)
        axes.plot(mean, base - 0.055, "^", color=INK, markersize=5, clip_on=False)


def positions(report: Report) -> Plot | None:
    """Acceptance by depth of the guess: given that all above was accepted, and of all steps."""
    found = [
        (title, cells)
        for title, cells in _cells(report)
        if any(cell.acceptance_by_depth for cell in cells.values())
    ]
    if not found:
        return None
    texts = [
        f"{title}, {looks(report.results)[method].label}: "
        + ", ".join(
            f"{position.conditional.value:.0%}" for position in cell.acceptance_by_depth[:3]
        )
        for title, cells in found
        for method, cell in cells.items()
        if cell.acceptance_by_depth
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


PLOTS = ((5, histogram), (6, positions))
