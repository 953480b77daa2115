"""Plot a tune of servers: the throughput of each draft size / that of plain decoding, by load."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specbench.report.plots.style import FAINT, LINE, Plot, error, frame, points, shades, tiles
from specbench.tune.served.load_choice import MethodResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ratios_by_load(result: MethodResult, software: str) -> Plot:
    """Plot a method's throughput / plain decoding's by load, with a line per draft size.

    Points have 95 % intervals, and the points of the chosen sizes are larger. The subtitle is
    `software`, the engine with its version.
    """
    title = f"{result.method.label}: throughput relative to plain decoding"
    loads = [choice.load for choice in result.choices]
    # the legend names all sizes that were measured; [1:] leaves out plain decoding
    size_titles = dict.fromkeys(
        measured.size.title for choice in result.choices for measured in choice.measured[1:]
    )

    def draw() -> Figure:
        """Draw the ratios over the loads, a line at 1, and the interval of the break-even load."""
        looks = shades(size_titles)  # colour and marker by title of the size
        # `handles` are for the legend. `height` is in inches.
        figure, (axes,) = tiles(title, software, 1, height=4.0, handles=points(looks.values()))
        for choice in result.choices:
            for measured in choice.measured[1:]:
                look = looks[measured.size.title]
                point = (choice.load, measured.ratio.value)
                marker_size = 11 if measured == choice.chosen else 5
                axes.plot(*point, markersize=marker_size, **look.point)
                axes.errorbar(*point, yerr=error(measured.ratio), color=look.colour)
        for size_title, look in looks.items():
            loads_and_ratios = [
                (choice.load, measured.ratio.value)
                for choice in result.choices
                for measured in choice.measured
                if measured.size.title == size_title
            ]
            axes.plot(*zip(*loads_and_ratios, strict=True), color=look.colour, linewidth=1.2)
        # loads up to which the best size is faster than plain decoding; None if unknown
        interval = result.break_even.interval
        # An end of 0 or infinity lies outside of the measured loads.
        if interval and interval.low > 0 and math.isfinite(interval.high):
            axes.axvspan(interval.low, interval.high, color=FAINT, alpha=0.2)
        axes.axhline(1, **LINE)
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, [str(load) for load in loads])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        frame(axes, x="requests at once", y="throughput relative to plain decoding", grid="both")
        return figure

    # the chosen size, its ratio and the load
    texts = [
        f"{choice.chosen.size.title}, {choice.chosen.ratio.value:.2f}, at {choice.load}"
        for choice in result.choices
    ]
    return Plot(
        name=f"by_load_{result.file_name}",
        title=title,
        alt=f"Lines. Chosen: {'; '.join(texts)}.",
        caption="Large points are the choices. Below the dashed line, plain decoding is faster. "
        "The grey band is the 95 % interval of the break-even load.",
        draw=draw,
    )
