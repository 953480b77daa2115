"""Speedup against mean accepted tokens, below the limit that the latter sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.stats import Estimate
from specbench.report.formats import interval_of
from specbench.report.plots.style import (
    EDGE,
    FAINT,
    INK,
    LINE,
    Look,
    Plot,
    figure,
    frame,
    legend,
    looks,
    panel_title,
    points,
)
from specbench.report.source import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MEMORY = (
    " The bar above a point is the limit that memory sets: a step as long as it takes to read the "
    "weights of target and drafter."
)


def _has_limits(report: Report) -> bool:
    return any(
        isinstance(row.cost.limit, Estimate)
        for block in report.table.blocks
        for row in block.rows
        if row.method != BASELINE
    )


def speedup_by_mat(report: Report) -> Plot | None:
    """A point per method and task; nothing where no method has a speedup."""
    texts = []
    for block in report.table.blocks:
        for group in block.groups:
            for row in group.rows:
                speedup, mat = row.overall.speedup, row.overall.mat
                if row.method == BASELINE or not isinstance(speedup, Estimate):
                    continue
                if isinstance(mat, Estimate):
                    title = panel_title(report, block.heading, group.label)
                    limit = row.cost.limit
                    bound = f", limit {limit.value:.2f}" if isinstance(limit, Estimate) else ""
                    texts.append(
                        f"{title}, {row.label}: {mat.value:.2f} tokens a step, {speedup.value:.2f} "
                        f"times as fast{bound}"
                    )
    if not texts:
        return None
    return Plot(
        "speedup_by_mat",
        "Speedup against mean accepted tokens",
        f"Scatter plot. {'; '.join(texts)}.",
        "Large points are means over the tasks with their intervals, small ones the tasks. If "
        "drafting and wide steps cost nothing, points would lie on the dashed line, where the "
        "speedup equals the accepted tokens; the distance below it is what they cost."
        + (_MEMORY if _has_limits(report) else ""),
        lambda: _draw(report),
    )


def _draw(report: Report) -> Figure:
    panels = [(block, group) for block in report.table.blocks for group in block.groups]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    drawn = figure("Speedup against mean accepted tokens", report.table.title, 0.5 + 3.6 * rows)
    every_axes = drawn.subplots(rows, columns, squeeze=False).ravel()
    shown = {m: look for m, look in looks(report).items() if m != BASELINE}
    for axes, (block, group) in zip(every_axes, panels, strict=False):
        metrics = report.sources[group.run].metrics
        for method, look in shown.items():
            if method in metrics.methods:
                _draw_method(axes, metrics, method, block.temperature, look)
        _draw_limit(axes)
        title = panel_title(report, block.heading, group.label)
        frame(axes, title, "mean accepted tokens (per step)", "speedup (times)", grid="both")
    for axes in every_axes[len(panels) :]:
        axes.set_visible(False)
    legend(drawn, points(shown.values(), has_line=False))
    return drawn


def _draw_method(
    axes: Axes, metrics: RunMetrics, method: str, temperature: float, look: Look
) -> None:
    for task in metrics.tasks:
        cell = metrics.cell(method, temperature, task)
        if isinstance(cell.speedup, Estimate) and isinstance(cell.mat, Estimate):
            axes.plot(
                cell.mat.value, cell.speedup.value, look.marker, color=look.colour, markersize=4,
                alpha=0.55, markeredgewidth=0,
            )  # fmt: skip
    overall = metrics.overall[method, temperature]
    if not (isinstance(overall.speedup, Estimate) and isinstance(overall.mat, Estimate)):
        return
    x, y = overall.mat.value, overall.speedup.value
    across, along = interval_of(overall.mat), interval_of(overall.speedup)
    axes.errorbar(
        x, y,
        xerr=[[x - across.low], [across.high - x]] if across else None,
        yerr=[[y - along.low], [along.high - y]] if along else None,
        color=EDGE, elinewidth=0.8, zorder=4,
    )  # fmt: skip
    axes.plot(x, y, linestyle="", markersize=9, zorder=5, **look.point)
    limit = metrics.cost(method, temperature).limit
    if isinstance(limit, Estimate):
        axes.plot([x, x], [y, limit.value], color=look.colour, linewidth=1, linestyle=":")
        axes.plot(x, limit.value, "_", color=look.colour, markersize=18, markeredgewidth=2.5)


def _draw_limit(axes: Axes) -> None:
    """The dashed line, and vanilla where both are 1, in the range of the points."""
    axes.plot(1, 1, "h", color=INK, markersize=5)
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    end = max(right, top)
    axes.plot([0, end], [0, end], **LINE)
    axes.set_xlim(0.8, right * 1.02)
    axes.set_ylim(0, top * 1.12)
    exit_at = min(top * 1.12, right * 1.02)
    is_steep = exit_at < 0.55 * right  # then there is room right of the line, else above it
    words = axes.annotate(
        "dashed: as fast as tokens are accepted",
        (exit_at, exit_at) if is_steep else (0.0, 1.0),
        xycoords="data" if is_steep else "axes fraction",
        xytext=(5, -4), textcoords="offset points", va="top", fontsize=8, color=FAINT,
    )  # fmt: skip
    words.set_in_layout(False)
