"""The plot of a tune of servers: the throughput of each draft size relative to plain decoding, by
load.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specbench.report.plots.style import FAINT, LINE, Plot, error, frame, points, shades, tiles
from specbench.tune.served.draft_size import PLAIN
from specbench.tune.served.load_choice import MethodResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ratios_by_load(result: MethodResult, software: str) -> Plot:
    """A line per size that was measured, with its intervals; large points are the choices."""
    label = result.method.label
    title = f"{label}: throughput relative to plain decoding"
    loads = [choice.load for choice in result.choices]
    titles = [entry.size.title for entry in result.choices[0].measured if entry.size != PLAIN]

    def draw() -> Figure:
        """Draw the ratios over the loads, a line at 1, and the interval of the break-even load."""
        looks = shades(titles)
        figure, (axes,) = tiles(title, software, 1, height=4.0, handles=points(looks.values()))
        for choice in result.choices:
            for entry in choice.measured:
                look = looks.get(entry.size.title)
                if look:
                    size = 11 if entry == choice.chosen else 5
                    axes.plot(choice.load, entry.ratio.value, markersize=size, **look.point)
                    axes.errorbar(
                        choice.load, entry.ratio.value, yerr=error(entry.ratio), color=look.colour
                    )
        for name, look in looks.items():
            heights = [
                (choice.load, entry.ratio.value)
                for choice in result.choices
                for entry in choice.measured
                if entry.size.title == name
            ]
            axes.plot(*zip(*heights, strict=True), color=look.colour, linewidth=1.2)
        interval = result.break_even.interval
        if interval and interval.low > 0 and math.isfinite(interval.high):
            axes.axvspan(interval.low, interval.high, color=FAINT, alpha=0.2)
        axes.axhline(1, **LINE)
        axes.set_xscale("log", base=2)
        axes.set_xticks(loads, [str(load) for load in loads])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        frame(axes, x="requests at once", y="throughput relative to plain decoding", grid="both")
        return figure

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
