"""The plots of a report, as far as its runs have what they show."""

from specbench.report.plots.acceptance import calibration, histogram, positions
from specbench.report.plots.bars import MAT, SPEEDUP, by_machine, by_task
from specbench.report.plots.limits import speedup_by_mat
from specbench.report.plots.steps import step_time
from specbench.report.plots.style import Plot, to_png, to_svg
from specbench.report.source import Report

__all__ = ["Plot", "plots", "to_png", "to_svg"]


def plots(report: Report) -> tuple[Plot, ...]:
    """Every plot that there is data for, in the order in which a report shows them."""
    found = (
        by_task(report, SPEEDUP),
        by_task(report, MAT),
        speedup_by_mat(report),
        histogram(report),
        positions(report),
        step_time(report),
        calibration(report),
        by_machine(report),
    )
    return tuple(plot for plot in found if plot is not None)
