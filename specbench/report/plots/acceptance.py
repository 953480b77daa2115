"""Plots of what was accepted: tokens per step as a histogram, acceptance by depth, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench.analysis.calibration import ALL_DEPTHS, Calibration
from specbench.analysis.cells import CellMetrics
from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats import Estimate
from specbench.report.plots.style import (
    FAINT,
    INK,
    LINE,
    Plot,
    figure,
    frame,
    legend,
    looks,
    panel_title,
    points,
)
from specbench.report.source import Report, Source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST_STEPS = 20
"""Steps that reached a depth from which the share accepted there is drawn."""
_MOST_LENGTH = 16
"""Tokens per step up to which each length has its own bar."""
_LEAST_NODES = 20
"""Nodes of a confidence from which the share of them that was accepted is drawn."""
_MOST_DEPTHS = 5


def _panels(report: Report) -> list[tuple[str, dict[str, CellMetrics]]]:
    """Per run and temperature: a title, and the pooled cell of every method that drafts."""
    found = []
    for block in report.table.blocks:
        for group in block.groups:
            metrics = report.sources[group.run].metrics
            cells = {
                method: metrics.pooled(method, block.temperature)
                for method in metrics.methods
                if method != BASELINE
            }
            cells = {method: cell for method, cell in cells.items() if cell.accept_histogram}
            if cells:
                found.append((panel_title(report, block.heading, group.label), cells))
    return found


def histogram(report: Report) -> Plot | None:
    """The share of steps by the tokens that they emitted, a row of bars per method."""
    panels = _panels(report)
    if not panels:
        return None
    texts = []
    for title, cells in panels:
        for method, cell in cells.items():
            one = cell.accept_histogram.get(1, 0) / cell.num_steps
            longest = max(cell.accept_histogram)
            label = looks(report)[method].label
            texts.append(
                f"{title}, {label}: {one:.0%} of steps emit one token, the most is {longest}"
            )
    return Plot(
        "accept_lengths",
        "Tokens per step",
        f"Histograms, a row per method. {'; '.join(texts)}.",
        "How the steps of all tasks divide by the tokens that they emitted: accepted guesses and "
        "the one that the target adds. A step of one token accepted nothing. Each row has its own "
        "scale; the triangle is the mean.",
        lambda: _draw_histogram(report, panels),
    )


def _draw_histogram(report: Report, panels: list[tuple[str, dict[str, CellMetrics]]]) -> Figure:
    from matplotlib.ticker import FixedLocator

    rows = [len(cells) for _, cells in panels]
    drawn = figure("Tokens per step", report.table.title, sum(0.75 + 0.52 * n for n in rows))
    every_axes = drawn.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
    longest = min(
        _MOST_LENGTH,
        max(max(cell.accept_histogram) for _, cells in panels for cell in cells.values()),
    )
    for axes, (title, cells) in zip(every_axes, panels, strict=True):
        shares = {method: _shares(cell, longest) for method, cell in cells.items()}
        for i, (method, cell) in enumerate(cells.items()):
            look = looks(report)[method]
            base = -float(i)
            highest = max(shares[method])
            heights = [share / highest * 0.66 for share in shares[method]]
            axes.bar(range(1, longest + 1), heights, 0.86, bottom=base, **look.bar)
            for length, (share, height) in enumerate(zip(shares[method], heights, strict=True), 1):
                if share >= 0.005:
                    axes.text(
                        length, base + height + 0.03, f"{share:.0%}", fontsize=6.5, ha="center",
                        color=FAINT,
                    )  # fmt: skip
            axes.axhline(base, color="0.75", linewidth=0.6)
            if isinstance(cell.mat, Estimate):
                mean = min(cell.mat.value, longest + 0.5)
                axes.plot(mean, base - 0.055, "^", color=INK, markersize=5, clip_on=False)
        axes.set_yticks([-i for i in range(len(cells))], [looks(report)[m].label for m in cells])
        axes.xaxis.set_major_locator(FixedLocator(range(1, longest + 1)))
        names = [str(length) for length in range(1, longest + 1)]
        if any(max(cell.accept_histogram) > longest for cell in cells.values()):
            names[-1] += "+"
        axes.set_xticks(range(1, longest + 1), names)
        axes.set_xlim(0.4, longest + 0.6)
        axes.set_ylim(0.88 - len(cells), 0.95)
        axes.tick_params(axis="y", length=0)
        frame(axes, title, x="tokens emitted by a step", grid="x")
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
    return drawn


def _shares(cell: CellMetrics, longest: int) -> list[float]:
    """The share of steps by tokens, the longest and all beyond in one."""
    shares = [0.0] * longest
    for length, count in cell.accept_histogram.items():
        shares[min(length, longest) - 1] += count / cell.num_steps
    return shares


def positions(report: Report) -> Plot | None:
    """Acceptance by depth of the guess: given that all above was accepted, and of all steps."""
    panels = [
        (title, cells)
        for title, cells in _panels(report)
        if any(c.positions for c in cells.values())
    ]
    if not panels:
        return None
    texts = []
    for title, cells in panels:
        for method, cell in cells.items():
            shares = [f"{p.conditional.value:.0%}" for p in cell.positions[:3]]
            if shares:
                texts.append(f"{title}, {looks(report)[method].label}: {', '.join(shares)}")
    return Plot(
        "positions",
        "Acceptance by position",
        "Line charts. Share of guesses accepted at depths 1, 2 and 3, given that all above were: "
        f"{'; '.join(texts)}.",
        "Left: how often the guess at a depth was accepted where all above it were. Right: the "
        "share of all steps that accept at least so deep. Depths that fewer than "
        f"{_LEAST_STEPS} steps reached are left out.",
        lambda: _draw_positions(report, panels),
    )


def _draw_positions(report: Report, panels: list[tuple[str, dict[str, CellMetrics]]]) -> Figure:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    drawn = figure("Acceptance by position", report.table.title, 0.5 + 2.9 * len(panels))
    grid = drawn.subplots(len(panels), 2, squeeze=False, sharey=True, sharex="row")
    shown = {m: look for m, look in looks(report).items() if any(m in cells for _, cells in panels)}
    for line, (title, cells) in zip(grid, panels, strict=True):
        for method, cell in cells.items():
            known = [p for p in cell.positions if p.num_reached >= _LEAST_STEPS]
            depths = [p.depth for p in known]
            style = {**looks(report)[method].point, "markersize": 5.5, "linewidth": 1.3}
            line[0].plot(depths, [p.conditional.value for p in known], **style)
            line[1].plot(depths, [p.unconditional.value for p in known], **style)
        for axes, y in zip(line, ("accepted, if all above were", "of all steps"), strict=True):
            name = title if axes is line[0] else ""
            frame(axes, name, x="depth of the guess (tokens below the last one)", y=y)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_ylim(0, 1.04)
            axes.tick_params(labelleft=True)
    legend(drawn, points(shown.values()))
    return drawn


def calibration(report: Report) -> Plot | None:
    """The draft's confidence in a node against the share of such nodes that was accepted."""
    panels = [
        (source, place, found)
        for source in report.sources
        for place, found in source.calibration.items()
    ]
    if not panels:
        return None
    texts = [
        f"{_calibration_title(report, source, place)}: {found[0].num_nodes} nodes, mean distance "
        f"{found[0].error:.2f}"
        for source, place, found in panels
    ]
    return Plot(
        "calibration",
        "Calibration of the draft",
        "Line charts of the share accepted over the draft's confidence, a panel per method. "
        f"{'; '.join(texts)}.",
        "Of the nodes that the draft gave a confidence, the share that was accepted. On the dashed "
        "line a draft knows what it knows; below it, it is too sure of itself. ECE is the mean "
        f"distance from the line. Points of fewer than {_LEAST_NODES} nodes are left out.",
        lambda: _draw_calibration(report, panels),
    )


def _calibration_title(report: Report, source: Source, place: tuple[str, float]) -> str:
    title = f"{source.info.method(place[0]).label}, T={place[1]:g}"
    return title if report.table.is_one_run else f"{title}, {source.label}"


def _draw_calibration(
    report: Report, panels: list[tuple[Source, tuple[str, float], tuple[Calibration, ...]]]
) -> Figure:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import PercentFormatter

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    drawn = figure("Calibration of the draft", report.table.title, 0.5 + 3.0 * rows)
    every_axes = drawn.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    handles: dict[str, Any] = {}
    for axes, (source, place, found) in zip(every_axes, panels, strict=False):
        axes.plot([0, 1], [0, 1], **LINE)
        for each in reversed(found[: _MOST_DEPTHS + 1]):
            style = _depth_style(each.depth)
            bins = [one for one in each.bins if one.num_nodes >= _LEAST_NODES]
            axes.plot([one.confidence for one in bins], [one.share for one in bins], **style)
            handles[style["label"]] = Line2D([], [], **style)
        title = _calibration_title(report, source, place)
        frame(
            axes, f"{title}   ECE {found[0].error:.2f}", x="confidence", y="accepted", grid="both"
        )
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.tick_params(labelbottom=True, labelleft=True)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.04)
    for axes in every_axes[len(panels) :]:
        axes.set_visible(False)
    legend(drawn, [handles[name] for name in sorted(handles, key=_depth_order)])
    return drawn


def _depth_style(depth: int) -> Mapping[str, Any]:
    """All depths in ink; each depth in a shade of its own, the deeper the lighter."""
    if depth == ALL_DEPTHS:
        style = {"color": INK, "linewidth": 2, "marker": "o", "markersize": 5}
        return {**style, "label": "all depths"}
    from matplotlib import colormaps

    shade = colormaps["cividis"](0.05 + 0.85 * (depth - 1) / (_MOST_DEPTHS - 1))
    marker = "sD^vP"[(depth - 1) % 5]
    style = {"color": shade, "linewidth": 1, "marker": marker, "markersize": 4}
    return {**style, "label": f"depth {depth}"}


def _depth_order(label: str) -> int:
    return int(label.split()[-1]) if label[-1].isdigit() else 0
