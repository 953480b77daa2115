"""Reports on servers begin with the method that has the most throughput at each load."""

import pytest

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.report.build import make_report
from tests.report.drawing import drawn, render, report_of, served

AT_LOADS = (
    "at 1 request, eagle3 has the highest throughput: 2.00x vanilla's",
    "at 8 requests, no method has a higher throughput than vanilla. eagle3 comes closest: 0.80x",
)
BREAK_EVEN = "It falls to 1 at about 5.7 requests at once"


@pytest.mark.parametrize("form", ["screen", "table", "markdown", "html"])
def test_loads_come_first_with_the_break_even_load(form: str) -> None:
    report = report_of(served)
    is_screen = form in ("screen", "table")
    text = drawn(report, 200, is_full=form == "table") if is_screen else render(report, form)
    words = text.replace("&#39;", "'").replace("At ", "at ")
    order = [words.index(part) for part in (*AT_LOADS, BREAK_EVEN, "Throughput of all requests")]
    main = "GSM8K" if form != "html" else '<th colspan="2" scope="colgroup"'
    assert order == sorted(order) and order[-1] < words.index(main)
    assert words.count(AT_LOADS[0]) == 1
    assert "tok/s per" in words


def test_a_run_at_a_single_load_has_no_lines_about_loads() -> None:
    run = served()
    report = make_report(run.at(run.loads[0]), Bootstrap(50))
    assert not report.load_notes
    assert "tok/s per" not in render(report, "markdown")
