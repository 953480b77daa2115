"""The plot of a swept option."""

from specbench.report.build import make_report
from specbench.report.plots import make_plots
from specbench.report.plots.style import save
from specbench.report.plots.sweeps import sweeps
from tests.analysis.run_factory import full_run


def test_a_swept_option_is_plotted_with_its_front() -> None:
    run = full_run(("vanilla", "eagle2:depth=3", "eagle2:depth=5", "eagle2:depth=7", "pld"))
    report = make_report(run)
    (plot,) = sweeps(report)
    assert plot.name == "sweep_EAGLE-2_depth"
    assert all(f"depth={depth}:" in plot.alt for depth in (3, 5, 7))
    assert plot.name in [one.name for one in make_plots(report)]
    drawn = save(plot.draw()).svg
    assert b"mean accepted tokens" in drawn and b"Pareto front" in drawn


def test_a_run_without_a_sweep_has_no_such_plot() -> None:
    assert sweeps(make_report(full_run(("vanilla", "eagle2", "pld")))) == []
