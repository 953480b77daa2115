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
    makers: list[tuple[float, Maker]] = []
    for _, name, _ in pkgutil.iter_modules(__path__):
        makers += getattr(import_module(f"{__name__}.{name}"), "PLOTS", ())
    plots: list[Plot] = []
    for _, make in sorted(makers, key=lambda one: one[0]):
        found = make(report)
        plots += [found] if isinstance(found, Plot) else found or ()
    return tuple(plots)
