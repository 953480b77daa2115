"""Where a step's time goes: drafting, verifying, committing and the host, per method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

from specbench.analysis.costs import Cost
from specbench.report.plots.style import (
    EDGE,
    FAINT,
    Plot,
    figure,
    frame,
    legend,
    looks,
    panel_title,
)
from specbench.report.source import Report
from specbench.types import Phases

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES: Mapping[str, tuple[str, str]] = {
    "draft": ("#4477AA", ""),
    "verify": ("#DDCC77", "///"),
    "commit": ("#66CCEE", "xx"),
    "host": ("#DDDDDD", "--"),
}
_NAMES = tuple(field.name.removesuffix("_s") for field in fields(Phases))

_Panels = list[tuple[str, dict[str, Cost]]]


def step_time(report: Report) -> Plot | None:
    """Stacked bars of a step's phases; nothing where no run measured them."""
    panels: _Panels = []
    for block in report.table.blocks:
        for group in block.groups:
            split = {row.method: row.cost for row in group.rows if row.cost.phases is not None}
            if split:
                panels.append((panel_title(report, block.heading, group.label), split))
    if not panels:
        return None
    texts = [
        f"{title}, {looks(report)[method].label}: "
        + ", ".join(f"{name} {ms:.2f}" for name, ms in _milliseconds(cost).items())
        for title, costs in panels
        for method, cost in costs.items()
    ]
    return Plot(
        "step_time",
        "Where a step's time goes",
        f"Stacked bars, milliseconds a step. {'; '.join(texts)}.",
        "Draft: the drafter sees the last step and proposes the next tree. Verify: the target's "
        "forward. Commit: the rule, and keeping the accepted path. Host: what is left. The device "
        "was waited for within the steps, so that the whole is slower than without --phases.",
        lambda: _draw(report, panels),
    )


def _milliseconds(cost: Cost) -> dict[str, float]:
    assert cost.phases is not None
    return {name: seconds * 1e3 for name, seconds in zip(_NAMES, astuple(cost.phases), strict=True)}


def _draw(report: Report, panels: _Panels) -> Figure:
    from matplotlib.patches import Patch

    rows = [len(costs) for _, costs in panels]
    drawn = figure(
        "Where a step's time goes", report.table.title, sum(0.95 + 0.3 * n for n in rows)
    )
    every_axes = drawn.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (title, costs) in zip(every_axes, panels, strict=True):
        for i, cost in enumerate(costs.values()):
            left = 0.0
            for name, width in _milliseconds(cost).items():
                axes.barh(-i, width, 0.72, left=left, **_bar(name))
                left += width
            axes.annotate(
                f"{left:.3g}", (left, -i), xytext=(4, 0), textcoords="offset points", fontsize=8,
                va="center", color=FAINT,
            )  # fmt: skip
        labels = [looks(report)[method].label for method in costs]
        axes.set_yticks([-i for i in range(len(costs))], labels)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.08)
        frame(axes, title, x="milliseconds a step", grid="x")
    legend(drawn, [Patch(label=name, **_bar(name)) for name in _NAMES])
    return drawn


def _bar(name: str) -> dict[str, Any]:
    colour, hatch = _STYLES[name]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": EDGE, "linewidth": 0.5}
