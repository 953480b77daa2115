"""The plots of a report, found by their files.

A file has `PLOTS`: pairs of a place in reports and a function that makes a plot, several, or None.
"""

import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module

from specbench.report.plots.style import Plot
from specbench.report.results import Report

Maker = Callable[[Report], Plot | Sequence[Plot] | None]


def make_plots(report: Report) -> tuple[Plot, ...]:
    """Every plot that there is data for, in the order in which a report shows them."""
    ranked_makers: list[tuple[float, Maker]] = []
    for _, module, _ in pkgutil.iter_modules(__path__):
        ranked_makers += getattr(import_module(f"{__name__}.{module}"), "PLOTS", ())
    ranked_makers.sort(key=lambda pair: pair[0])
    plots: list[Plot] = []
    for _, make in ranked_makers:
        drawn = make(report)
        if isinstance(drawn, Plot):
            plots.append(drawn)
        elif drawn:
            plots += drawn
    return tuple(plots)
