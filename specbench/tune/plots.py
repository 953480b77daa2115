"""Plots of the tuner: a cost curve, predictions over nodes and depth, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.report.plots.style import EDGE, INK, LINE, Look, Plot, frame, points, shades, tiles
from specbench.tune.predict import Prediction
from specbench.tune.stored_cost import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cost_curve(curve: Curve) -> Plot:
    """The time of a step by rows, a line for each number of threads and length."""
    head, title = curve.header, "Time of a step by rows"
    steps = np.median(np.array(head.steps), 0)  # [threads, lengths, rows]

    def draw() -> Figure:
        lines = [(t, c) for t in range(len(head.threads)) for c in range(len(head.lengths))]
        words = ", ".join(head.about[name] for name in ("model", "dtype", "machine"))
        names = [f"{head.threads[t]} threads, {head.lengths[c]} tokens before" for t, c in lines]
        looks = zip(names, shades(len(lines)), strict=True)
        shown = [Look(name, one.colour, one.marker) for name, one in looks]
        drawn, (axes,) = tiles(title, words, 1, most_columns=1, height=3.6, handles=points(shown))
        for (t, c), look in zip(lines, shown, strict=True):
            axes.plot(head.rows, steps[t, c], markersize=4, **look.point)
        axes.set_ylim(bottom=0)
        frame(axes, x="rows", y="steps of vanilla", grid="both")
        return drawn

    most = f"{steps[0, len(head.lengths) // 2, -1]:.2f} at {head.rows[-1]} rows"
    caption = "Time of a step of the target by rows; 1 is a step of vanilla at the middle length."
    return Plot("cost_curve", title, f"Line chart. {most}.", caption, draw)


def heat_map(predictions: Sequence[Prediction]) -> Plot | None:
    """The best speedup of one method by nodes and depth, over all top-k; None without trees."""
    cells: dict[tuple[int, int], float] = {}
    for one in predictions:
        if {"total_tokens", "depth"} <= {*one.options}:
            place = one.options["depth"], one.options["total_tokens"]
            cells[place] = max(cells.get(place, 0.0), one.speedup)
    if not cells:
        return None
    depths, nodes = (sorted({place[i] for place in cells}) for i in (0, 1))
    name, title = predictions[0].method, f"Predicted speedup of {predictions[0].method}"

    def draw() -> Figure:
        drawn, (axes,) = tiles(title, predictions[0].machine, 1, most_columns=1, height=3.4)
        values = np.array([[cells.get((d, n), np.nan) for n in nodes] for d in depths])
        axes.imshow(values, cmap="cividis", aspect="auto", origin="lower")
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                dark = value < (np.nanmin(values) + np.nanmax(values)) / 2
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(column, row, f"{value:.2f}", color="white" if dark else INK, **style)
        axes.set_xticks(range(len(nodes)), [str(n) for n in nodes])
        axes.set_yticks(range(len(depths)), [str(d) for d in depths])
        frame(axes, x="nodes", y="depth")
        axes.grid(visible=False)
        return drawn

    best = max(cells, key=lambda place: cells[place])
    alt = f"Heat map. The best is {cells[best]:.2f} with {best[1]} nodes and depth {best[0]}."
    caption = "Each cell has the top-k that is best there."
    return Plot(f"heat_map_{name}", title, alt, caption, draw)


def agreement(found: Sequence[tuple[Prediction, float]]) -> Plot | None:
    """Measured speedups against predictions, a point a setting; None without any."""
    if not found:
        return None
    title = "Predicted and measured speedup"

    def draw() -> Figure:
        names = sorted({about.method for about, _ in found})
        looks = dict(zip(names, shades(len(names)), strict=True))
        shown = [Look(name, one.colour, one.marker) for name, one in looks.items()]
        handles = points(shown, has_line=False)
        where: dict[str, Any] = {"most_columns": 1, "height": 4.2, "handles": handles}
        drawn, (axes,) = tiles(title, found[0][0].machine, 1, **where)
        for about, value in found:
            ends = [[about.speedup - about.low], [about.high - about.speedup]]
            axes.errorbar(about.speedup, value, xerr=ends, color=EDGE, elinewidth=0.8)
            axes.plot(about.speedup, value, linestyle="", markersize=7, **looks[about.method].point)
        most = max(max(about.high, value) for about, value in found) * 1.05
        axes.plot([0, most], [0, most], **LINE)
        axes.set_xlim(0, most)
        axes.set_ylim(0, most)
        frame(axes, x="predicted", y="measured", grid="both")
        return drawn

    away = sorted(abs(value / about.speedup - 1) for about, value in found)
    alt = f"Scatter plot of {len(found)} settings. Median error {away[len(away) // 2]:.1%}."
    caption = "On the dashed line, a setting is as fast as predicted. Bars: 95 % intervals."
    return Plot("predicted_and_measured", title, alt, caption, draw)
