"""Plots of a tune: the cost curve, the best settings by size, and predictions against runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.report.plots.style import EDGE, INK, LINE, Plot, frame, points, shades, tiles
from specbench.settings.cost_curve import Curve
from specbench.tune.predict import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class MeasuredPrediction(NamedTuple):
    """A prediction with the speedup measured later."""

    prediction: Prediction
    measured: float


def cost_curve(curve: Curve) -> Plot:
    """A line chart of the time of a step by rows, a line per number of threads and length.

    Rows are the nodes of a draft, lengths the tokens of a prompt. Times are in steps of vanilla,
    the median of the curve's blocks. It is drawn when it is saved.
    """
    title = "Time of a step by rows"
    # `curve.steps` [blocks, threads, lengths, rows]
    step_times = np.median(np.array(curve.steps), 0)  # [threads, lengths, rows]

    def draw() -> Figure:
        """Draw `step_times` over rows, a line per number of threads and length.

        They are in steps of vanilla [threads, lengths, rows]. `curve` has the numbers along these
        axes; `curve.about` names the model and the machine.
        """
        lines = [*product(range(len(curve.threads)), range(len(curve.lengths)))]  # pairs of indices
        legend = [
            f"{curve.threads[thread_index]} threads, {curve.lengths[length_index]} tokens before"
            for thread_index, length_index in lines
        ]
        looks = shades(legend).values()  # per line; `look.point` has its colour and marker
        subtitle = ", ".join(curve.about[name] for name in ("model", "dtype", "machine"))
        figure, (axes,) = tiles(title, subtitle, num_axes=1, height=3.6, handles=points(looks))
        for (thread_index, length_index), look in zip(lines, looks, strict=True):
            times = step_times[thread_index, length_index]  # [rows]
            axes.plot(curve.rows, times, markersize=4, **look.point)
        axes.set_ylim(bottom=0)
        frame(axes, x="rows", y="steps of vanilla", grid="both")
        return figure

    most_rows_time = step_times[0, len(curve.lengths) // 2, -1]  # vanilla's threads, middle length
    caption = "Time of a step of the target by rows; 1 is a step of vanilla at the middle length."
    return Plot(
        name="cost_curve",
        title=title,
        alt=f"Line chart. {most_rows_time:.2f} at {curve.rows[-1]} rows.",
        caption=caption,
        draw=draw,
    )


def heat_map(predictions: Sequence[Prediction]) -> Plot | None:
    """A heat map of one method's best predicted speedup by depth and nodes, over all top-k.

    The method and the machine are those of all predictions. Settings without the options `depth`
    and `total_tokens` (nodes) are left out; None if no setting is left. It is drawn when it is
    saved.
    """
    import pandas as pd

    axis_options = ("depth", "total_tokens")  # of a dynamic tree; its `top_k` is the third
    tree_predictions = [
        prediction for prediction in predictions if {*axis_options} <= {*prediction.options}
    ]
    if not tree_predictions:
        return None
    speedup_table = pd.DataFrame(  # a row per setting: its options and its speedup
        [{**prediction.options, "speedup": prediction.speedup} for prediction in tree_predictions]
    )
    # best speedup [depths, nodes], indexed by depth, a column per number of nodes
    best_speedups = speedup_table.pivot_table("speedup", *axis_options, aggfunc="max")
    method, machine = predictions[0].method, predictions[0].machine
    title = f"Predicted speedup of {method}"

    def draw() -> Figure:
        """Draw `best_speedups`: nodes along x, depths along y."""
        figure, (axes,) = tiles(title, machine, num_axes=1, height=3.4)
        _draw_cells(axes, best_speedups.to_numpy())
        axes.set_xticks(range(len(best_speedups.columns)), best_speedups.columns.map(str))
        axes.set_yticks(range(len(best_speedups)), best_speedups.index.map(str))
        frame(axes, x="nodes", y="depth")
        axes.grid(visible=False)
        return figure

    best = max(tree_predictions, key=lambda prediction: prediction.speedup)
    best_shape = f"{best.options['total_tokens']} nodes and depth {best.options['depth']}"
    return Plot(
        name=f"heat_map_{method}",
        title=title,
        alt=f"Heat map. The best is {best.speedup:.2f} with {best_shape}.",
        caption="Each cell has the top-k that is best there.",
        draw=draw,
    )


def _draw_cells(axes: Axes, speedups: np.ndarray[Any, Any]) -> None:
    """Colour each cell [depths, nodes] by its speedup, and write the number on it."""
    axes.imshow(speedups, cmap="cividis", aspect="auto", origin="lower")
    middle = (np.nanmin(speedups) + np.nanmax(speedups)) / 2
    for (row, column), speedup in np.ndenumerate(speedups):
        if np.isfinite(speedup):
            colour = "white" if speedup < middle else INK  # small speedups are dark
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
            axes.text(column, row, f"{speedup:.2f}", color=colour, **style)


def agreement(pairs: Sequence[MeasuredPrediction]) -> Plot | None:
    """A scatter plot of measured against predicted speedups, a point per setting.

    A pair is a prediction and the speedup that was measured. None without any pairs. It is drawn
    when it is saved.
    """
    if not pairs:
        return None
    title = "Predicted and measured speedup"

    def draw() -> Figure:
        """Draw `pairs` of a prediction and the speedup that was measured, a point each.

        A prediction is of a method's setting: `speedup`, with its interval from `low` to `high`.
        """
        # colour and marker by method: `look.point`
        looks = shades(sorted(prediction.method for prediction, _ in pairs))
        handles = points(looks.values(), has_line=False)  # of the legend
        machine = pairs[0].prediction.machine  # of the cost curve, the subtitle
        figure, (axes,) = tiles(title, machine, num_axes=1, height=4.2, handles=handles)
        for prediction, measured in pairs:
            predicted = prediction.speedup
            # distances to the ends of the 95 % interval [2, 1], as `errorbar` takes them
            distances = [[predicted - prediction.low], [prediction.high - predicted]]
            axes.errorbar(predicted, measured, xerr=distances, color=EDGE, elinewidth=0.8)
            look = looks[prediction.method]
            axes.plot(predicted, measured, linestyle="", markersize=7, **look.point)
        largest_speedup = max(max(prediction.high, measured) for prediction, measured in pairs)
        axis_end = largest_speedup * 1.05  # with a margin
        axes.plot([0, axis_end], [0, axis_end], **LINE)  # the diagonal: measured as predicted
        axes.axis((0, axis_end, 0, axis_end))
        frame(axes, x="predicted", y="measured", grid="both")
        return figure

    # relative errors |measured / predicted - 1| of the settings, the smallest first
    errors = sorted(abs(measured / prediction.speedup - 1) for prediction, measured in pairs)
    median_error = errors[len(errors) // 2]
    return Plot(
        name="predicted_and_measured",
        title=title,
        alt=f"Scatter plot of {len(pairs)} settings. Median error {median_error:.1%}.",
        caption="On the dashed line, a setting is as fast as predicted. Bars: 95 % intervals.",
        draw=draw,
    )
