"""The plots of a report."""

from specbench.report.plots.acceptance import histogram, positions
from specbench.report.plots.bars import MAT, SPEEDUP, by_machine, by_task
from specbench.report.plots.calibration import calibration
from specbench.report.plots.scatter import speedup_by_mat
from specbench.report.plots.serving import frontier, speedup_by_load
from specbench.report.plots.steps import step_time
from specbench.report.plots.style import Plot
from specbench.report.plots.sweeps import sweeps
from specbench.report.report import Report


def make_plots(report: Report) -> tuple[Plot, ...]:
    """Every plot that there is data for, in the order in which a report shows them."""
    found = (
        by_task(report, SPEEDUP),
        by_task(report, MAT),
        speedup_by_mat(report),
        *sweeps(report),
        histogram(report),
        positions(report),
        step_time(report),
        calibration(report),
        by_machine(report),
        frontier(report),
        speedup_by_load(report),
    )
    return tuple(plot for plot in found if plot is not None)
