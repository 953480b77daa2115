"""Plot a tune: the cost curve, the best settings by size, and predictions against measurements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import median_high
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specbench.report.plots.style import EDGE, INK, LINE, Plot, frame, points, shades, tiles
from specbench.settings.cost_curve import Curve
from specbench.tune.predict import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class MeasuredPrediction(NamedTuple):
    """A prediction, with the speedup that was measured later."""

    prediction: Prediction
    measured: float


def cost_curve(curve: Curve) -> Plot:
    """Plot the time of a step by rows, with a line per number of threads and prompt length.

    Prompt lengths are in tokens. Times are in steps of vanilla, the median over the curve's blocks.
    The chart is drawn when the plot is saved.
    """
    title = "Time of a step by rows"
    # `curve.steps` [blocks, threads, lengths, rows]
    step_times = np.median(np.array(curve.steps), 0)  # [threads, lengths, rows]

    def draw() -> Figure:
        """Draw `step_times`, in steps of vanilla, over the numbers of rows.

        `curve` has the numbers of threads, the prompt lengths and the numbers of rows; its `about`
        names the model, the dtype and the machine.
        """
        # a line per pair of a thread index and a length index
        lines = [*product(range(len(curve.threads)), range(len(curve.lengths)))]
        legend = [
            f"{curve.threads[thread_index]} threads, {curve.lengths[length_index]} tokens before"
            for thread_index, length_index in lines
        ]
        looks = shades(legend).values()  # colour and marker of each line
        subtitle = ", ".join(curve.about[name] for name in ("model", "dtype", "machine"))
        # `handles` are for the legend. `height` is in inches.
        figure, (axes,) = tiles(title, subtitle, num_axes=1, height=3.6, handles=points(looks))
        for (thread_index, length_index), look in zip(lines, looks, strict=True):
            times = step_times[thread_index, length_index]  # [rows]
            axes.plot(curve.rows, times, markersize=4, **look.point)
        axes.set_ylim(bottom=0)
        frame(axes, x="rows", y="steps of vanilla", grid="both")
        return figure

    # with vanilla's number of threads (0), the middle prompt length and the most rows (-1)
    most_rows_time = step_times[0, len(curve.lengths) // 2, -1]
    caption = "Time of a target step by rows. 1 is vanilla's step at the middle context length."
    return Plot(
        name="cost_curve",
        title=title,
        alt=f"Line chart. {most_rows_time:.2f} at {curve.rows[-1]} rows.",
        caption=caption,
        draw=draw,
    )


def heat_map(predictions: Sequence[Prediction]) -> Plot | None:
    """Plot a method's best predicted speedup by the depth and the nodes of its tree.

    The best is over all other options, such as `top_k`. All predictions are for one method on one
    machine. Predictions without `depth` and `total_tokens` (nodes) are left out; the result is None
    if no prediction is left. The map is drawn when the plot is saved.
    """
    import pandas as pd

    axis_options = ("depth", "total_tokens")  # the options along y, and along x
    tree_predictions = [
        prediction for prediction in predictions if {*axis_options} <= {*prediction.options}
    ]
    if not tree_predictions:
        return None
    speedup_table = pd.DataFrame(  # a row per setting: its options and its speedup
        [{**prediction.options, "speedup": prediction.speedup} for prediction in tree_predictions]
    )
    # best speedup: a row per depth, a column per number of nodes
    best_speedups = speedup_table.pivot_table("speedup", *axis_options, aggfunc="max")
    method, machine = predictions[0].method, predictions[0].machine
    title = f"Predicted speedup of {method}"

    def draw() -> Figure:
        """Draw `best_speedups`: numbers of nodes along x, depths along y."""
        figure, (axes,) = tiles(title, machine, num_axes=1, height=3.4)  # in inches
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
        caption="Each cell uses the top-k that is best for it.",
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
    """Plot measured against predicted speedups, with a point per setting.

    `pairs` has the prediction and the measured speedup of each setting. None without pairs. The
    chart is drawn when the plot is saved.
    """
    if not pairs:
        return None
    title = "Predicted and measured speedup"

    def draw() -> Figure:
        """Draw a point per pair of a prediction and a measured speedup, with an error bar.

        The bar is the 95 % interval of the prediction, from `low` to `high`.
        """
        # colour and marker by method name
        looks = shades(sorted(prediction.method for prediction, _ in pairs))
        handles = points(looks.values(), has_line=False)  # of the legend
        machine = pairs[0].prediction.machine  # the same in all predictions; the subtitle
        # `height` is in inches
        figure, (axes,) = tiles(title, machine, num_axes=1, height=4.2, handles=handles)
        for prediction, measured in pairs:
            predicted = prediction.speedup
            # distances to the lower and the upper end of the interval, as `errorbar` takes them
            distances = [[predicted - prediction.low], [prediction.high - predicted]]
            axes.errorbar(predicted, measured, xerr=distances, color=EDGE, elinewidth=0.8)
            look = looks[prediction.method]
            axes.plot(predicted, measured, linestyle="", markersize=7, **look.point)
        largest_speedup = max(max(prediction.high, measured) for prediction, measured in pairs)
        axis_end = largest_speedup * 1.05  # with a margin of 5 %
        axes.plot([0, axis_end], [0, axis_end], **LINE)  # the diagonal: as fast as predicted
        axes.axis((0, axis_end, 0, axis_end))
        frame(axes, x="predicted", y="measured", grid="both")
        return figure

    # relative error |measured / predicted - 1| of each setting
    errors = [abs(measured / prediction.speedup - 1) for prediction, measured in pairs]
    median_error = median_high(errors)
    return Plot(
        name="predicted_and_measured",
        title=title,
        alt=f"Scatter plot of {len(pairs)} settings. Median error {median_error:.1%}.",
        caption="On the dashed line, a setting is as fast as predicted. Bars: 95 % intervals.",
        draw=draw,
    )
