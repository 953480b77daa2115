"""Plots of the tuner: a cost curve, predictions over nodes and depth, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.report.plots.style import EDGE, INK, LINE, Plot, frame, points, shades, tiles
from specbench.tune.cost import Curve
from specbench.tune.predict import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cost_curve(curve: Curve) -> Plot:
    """The time of a step by rows, a line for each number of threads and length."""
    title = "Time of a step by rows"
    steps = np.median(np.array(curve.steps), 0)  # [threads, lengths, rows]

    def draw() -> Figure:
        lines = [(t, c) for t in range(len(curve.threads)) for c in range(len(curve.lengths))]
        words = ", ".join(curve.about[name] for name in ("model", "dtype", "machine"))
        names = [f"{curve.threads[t]} threads, {curve.lengths[c]} tokens before" for t, c in lines]
        shown = shades(names).values()
        drawn, (axes,) = tiles(title, words, 1, height=3.6, handles=points(shown))
        for (t, c), look in zip(lines, shown, strict=True):
            axes.plot(curve.rows, steps[t, c], markersize=4, **look.point)
        axes.set_ylim(bottom=0)
        frame(axes, x="rows", y="steps of vanilla", grid="both")
        return drawn

    most = f"{steps[0, len(curve.lengths) // 2, -1]:.2f} at {curve.rows[-1]} rows"
    caption = "Time of a step of the target by rows; 1 is a step of vanilla at the middle length."
    return Plot("cost_curve", title, f"Line chart. {most}.", caption, draw)


def heat_map(predictions: Sequence[Prediction]) -> Plot | None:
    """The best speedup of one method by nodes and depth, over all top-k; None without trees."""
    import pandas as pd

    names = ("depth", "total_tokens")
    trees = [one for one in predictions if {*names} <= {*one.options}]
    if not trees:
        return None
    tried = pd.DataFrame([one.options | {"speedup": one.speedup} for one in trees])
    cells = tried.pivot_table("speedup", *names, aggfunc="max")
    name, title = predictions[0].method, f"Predicted speedup of {predictions[0].method}"

    def draw() -> Figure:
        drawn, (axes,) = tiles(title, predictions[0].machine, 1, height=3.4)
        values = cells.to_numpy()
        axes.imshow(values, cmap="cividis", aspect="auto", origin="lower")
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                dark = value < (np.nanmin(values) + np.nanmax(values)) / 2
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(column, row, f"{value:.2f}", color="white" if dark else INK, **style)
        axes.set_xticks(range(len(cells.columns)), cells.columns.map(str))
        axes.set_yticks(range(len(cells)), cells.index.map(str))
        frame(axes, x="nodes", y="depth")
        axes.grid(visible=False)
        return drawn

    best = max(trees, key=lambda one: one.speedup)
    depth, nodes = (best.options[name] for name in names)
    alt = f"Heat map. The best is {best.speedup:.2f} with {nodes} nodes and depth {depth}."
    caption = "Each cell has the top-k that is best there."
    return Plot(f"heat_map_{name}", title, alt, caption, draw)


def agreement(found: Sequence[tuple[Prediction, float]]) -> Plot | None:
    """Measured speedups against predictions, a point a setting; None without any."""
    if not found:
        return None
    title = "Predicted and measured speedup"

    def draw() -> Figure:
        looks = shades(sorted(about.method for about, _ in found))
        handles = points(looks.values(), has_line=False)
        drawn, (axes,) = tiles(title, found[0][0].machine, 1, height=4.2, handles=handles)
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
