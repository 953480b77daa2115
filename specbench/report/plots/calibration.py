"""The draft's confidence in a node against the share of such nodes that was accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench.analysis.calibration import ALL_DEPTHS, Calibration
from specbench.report.plots.style import INK, LINE, Plot, frame, shades, tiles
from specbench.report.report import MethodAt, Report, Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_NODES = 20
"""Nodes that a confidence must have for its share to be drawn."""
_MOST_DEPTHS = 5
_TITLE = "Calibration of the draft"

_Panels = list[tuple[str, tuple[Calibration, ...]]]


def calibration(report: Report) -> Plot | None:
    """A panel per traced method and temperature; None if nothing was traced."""
    found = [
        (_panel_title(report, source, method_at), calibrations)
        for source in report.sources
        for method_at, calibrations in source.calibration.items()
    ]
    if not found:
        return None
    texts = [
        f"{title}: {calibrations[0].num_nodes} nodes, mean distance {calibrations[0].error:.2f}"
        for title, calibrations in found
    ]
    return Plot(
        name="calibration",
        title=_TITLE,
        alt="Line charts of the share accepted over the draft's confidence, a panel per method. "
        f"{'; '.join(texts)}.",
        caption="The share of nodes that was accepted, by the confidence that the draft gave them. "
        "A calibrated draft is on the dashed line; below it, the draft is overconfident. ECE is "
        f"the mean distance from the line. Points of fewer than {_LEAST_NODES} nodes are left out.",
        draw=lambda: _draw(report, found),
    )


def _panel_title(report: Report, source: Source, method_at: MethodAt) -> str:
    title = f"{source.info.method(method_at[0]).label}, T={method_at[1]:g}"
    return title if report.results.is_one_run else f"{title}, {source.label}"


def _draw(report: Report, found: _Panels) -> Figure:
    from matplotlib.lines import Line2D

    depths = sorted({one.depth for _, several in found for one in several[: _MOST_DEPTHS + 1]})
    handles = [Line2D([], [], **_depth_style(depth)) for depth in depths]
    words = (_TITLE, report.results.caption, len(found))
    drawn, every_axes = tiles(*words, most_columns=3, height=3.0, share=True, handles=handles)
    for axes, (title, calibrations) in zip(every_axes, found, strict=False):
        _draw_panel(axes, calibrations)
        title = f"{title}   ECE {calibrations[0].error:.2f}"
        frame(axes, title, x="confidence", y="accepted", grid="both")
    return drawn


def _draw_panel(axes: Axes, calibrations: Sequence[Calibration]) -> None:
    """A line for all depths and one for each of the first depths."""
    from matplotlib.ticker import PercentFormatter

    axes.plot([0, 1], [0, 1], **LINE)
    for each in reversed(calibrations[: _MOST_DEPTHS + 1]):
        bins = [one for one in each.bins if one.num_nodes >= _LEAST_NODES]
        shares = [one.share for one in bins]
        axes.plot([one.confidence for one in bins], shares, **_depth_style(each.depth))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.tick_params(labelbottom=True, labelleft=True)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.04)


def _depth_style(depth: int) -> Mapping[str, Any]:
    """All depths in ink; each depth in a shade of its own, the deeper the lighter."""
    if depth == ALL_DEPTHS:
        style = {"color": INK, "linewidth": 2, "marker": "o", "markersize": 5}
        return {**style, "label": "all depths"}
    style = {**shades(_MOST_DEPTHS)[depth - 1].point, "linewidth": 1, "markersize": 4}
    return {**style, "label": f"depth {depth}"}


PLOTS = ((8, calibration),)
