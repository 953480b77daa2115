"""The time of a step by phase: drafting, verifying, committing and the host."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

from specbench.report.plots.style import (
    EDGE,
    FAINT,
    Plot,
    figure,
    frame,
    looks,
    name_rows,
    panels,
    rows_of_axes,
)
from specbench.report.report import Report
from specbench.types import Phases

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"draft": "#4477AA", "verify": "#DDCC77", "commit": "#66CCEE", "host": "#DDDDDD"}
_NAMES = tuple(field.name.removesuffix("_s") for field in fields(Phases))
_TITLE = "Time of a step by phase"

_Panels = list[tuple[str, dict[str, Phases]]]


def step_time(report: Report) -> Plot | None:
    """Stacked bars of a step's phases; None if no run measured them."""
    found: _Panels = []
    for panel in panels(report.results):
        phases = {m.method: m.cost.phases for m in panel.run.methods if m.cost.phases is not None}
        if phases:
            found.append((panel.title, phases))
    if not found:
        return None
    texts = [
        f"{title}, {looks(report.results)[method].label}: "
        + ", ".join(f"{name} {ms:.2f}" for name, ms in _milliseconds(phases).items())
        for title, methods in found
        for method, phases in methods.items()
    ]
    return Plot(
        name="step_time",
        title=_TITLE,
        alt=f"Stacked bars, milliseconds per step. {'; '.join(texts)}.",
        caption="Draft: the drafter sees the last step and proposes the next tree. Verify: the "
        "target's forward. Commit: the acceptance rule, and keeping the accepted path. Host: the "
        "rest. The phases wait for the device, so that a step is slower than without --phases.",
        draw=lambda: _draw(report, found),
    )


def _milliseconds(phases: Phases) -> dict[str, float]:
    return {name: seconds * 1e3 for name, seconds in zip(_NAMES, astuple(phases), strict=True)}


def _draw(report: Report, found: _Panels) -> Figure:
    from matplotlib.patches import Patch

    rows = [len(methods) for _, methods in found]
    handles = [Patch(label=name, **_bar(name)) for name in _NAMES]
    drawn = figure(_TITLE, report.results.caption, sum(0.8 + 0.3 * n for n in rows), handles)
    for axes, (title, methods) in zip(rows_of_axes(drawn, rows), found, strict=True):
        for i, phases in enumerate(methods.values()):
            left = 0.0
            for name, width in _milliseconds(phases).items():
                axes.barh(-i, width, height=0.72, left=left, **_bar(name))
                left += width
            axes.annotate(
                f"{left:.3g}",
                (left, -i),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=8,
                va="center",
                color=FAINT,
            )
        name_rows(axes, [looks(report.results)[method] for method in methods])
        axes.margins(x=0.08)
        frame(axes, title, x="milliseconds per step", grid="x")
    return drawn


def _bar(name: str) -> dict[str, Any]:
    return {"facecolor": _COLOURS[name], "edgecolor": EDGE, "linewidth": 0.5}


PLOTS = ((7, step_time),)
