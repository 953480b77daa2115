"""The tables of README and docs/measurements/gpu.md are those that the tool writes from runs."""

import re

from specbench.log.store import read_run
from specbench.report.build import make_report
from tests.support.paths import RECORDED, ROOT
from tools.docs.result import with_tables


def test_the_readme_has_the_tables_of_its_recorded_runs_and_nothing_else_changes() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"\]\(results/recorded/([\w.-]+)\)", readme)
    reports = [make_report(read_run(RECORDED / name)) for name in names]
    assert reports
    assert with_tables(readme, reports) == readme
    gpu_page = (ROOT / "docs/measurements/gpu.md").read_text(encoding="utf-8")
    assert "<!-- calculated -->" in gpu_page
    assert with_tables(gpu_page, reports) == gpu_page

    speedup = re.findall(r"\| (\d\.\d\dx) \[", readme)[-1]
    stale = readme.replace(speedup, "9.99x")
    written = with_tables(stale, [*reports, *reports])
    assert "9.99x" not in written
    assert written.count("\n| Vanilla | ") == 2 * len(reports)
    after_table = readme.split("<!-- /table -->")[1]
    assert written.split("<!-- /table -->")[1] == after_table
