"""The plot of a swept option."""

import numpy as np
from matplotlib.path import Path

from specbench.report.build import make_report
from specbench.report.plots import make_plots
from specbench.report.plots.style import looks, save
from specbench.report.plots.sweeps import sweeps
from tests.analysis.run_factory import full_run, make_run, record


def test_a_swept_option_is_plotted_with_its_front() -> None:
    run = full_run(("vanilla", "eagle2:depth=3", "eagle2:depth=5", "eagle2:depth=7", "pld"))
    report = make_report(run)
    (plot,) = sweeps(report)
    assert plot.name == "sweep_EAGLE-2_depth"
    assert all(f"depth={depth}:" in plot.alt for depth in (3, 5, 7))
    assert plot.name in [one.name for one in make_plots(report)]
    drawn = save(plot.draw()).svg
    assert b"mean accepted tokens" in drawn and b"Pareto front" in drawn
    shown = looks(report.results).values()
    assert {look.marker for look in shown if look.is_numbered} == {"$1$", "$2$", "$3$"}
    assert all(isinstance(look.shape, Path) is look.is_numbered for look in shown)


def test_the_front_is_one_for_all_lines_of_a_panel() -> None:
    """A line that is slower and accepts less everywhere has no ringed point."""
    speeds = {"eagle2:depth=3,top_k=1": 1.5, "eagle2:depth=5,top_k=1": 2.0}
    slow = {"eagle2:depth=3,top_k=9": 4.0, "eagle2:depth=5,top_k=9": 5.0}
    records = [
        record(method, sample, decode_s=seconds, accept_lengths=lengths)
        for sample in ("a", "b")
        for method, seconds, lengths in [
            ("vanilla", 3.0, (1,) * 6),
            *((method, seconds, (3, 3)) for method, seconds in speeds.items()),
            *((method, seconds, (2, 2, 2)) for method, seconds in slow.items()),
        ]
    ]
    run = make_run(records, full_run(("vanilla", *speeds, *slow), ("gsm8k",)).header)
    (plot, *_) = [one for one in sweeps(make_report(run)) if one.name.endswith("depth")]
    *lines, ring = plot.figure.axes[0].get_lines()
    assert np.asarray(ring.get_xdata()).tolist() == [3]
    # Points that fall on each other are seen, since the later ones are smaller.
    sizes = [line.get_markersize() for line in lines]
    assert len({*sizes}) == 2 and sizes == sorted(sizes, reverse=True)
    assert plot.caption.endswith("the earlier one are larger.")
