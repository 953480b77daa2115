"""Make the plots of a report with the functions that the modules of this package list in `PLOTS`.

An entry of `PLOTS` is a number, which sorts the plots, and a function that makes a plot, several
plots, or None.
"""

import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module

from specbench.report.plots.style import Plot
from specbench.report.results import Report

Maker = Callable[[Report], Plot | Sequence[Plot] | None]


def make_plots(report: Report) -> tuple[Plot, ...]:
    """Return all plots that have data, in the order in which a report shows them."""
    ranked_makers: list[tuple[float, Maker]] = []
    for _, module_name, _ in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{module_name}")
        ranked_makers += getattr(module, "PLOTS", ())
    ranked_makers.sort(key=lambda place_and_maker: place_and_maker[0])
    plots: list[Plot] = []
    for _, make in ranked_makers:
        plot_or_plots = make(report)  # None or empty if there is no data
        if isinstance(plot_or_plots, Plot):
            plots.append(plot_or_plots)
        elif plot_or_plots:
            plots += plot_or_plots
    return tuple(plots)
