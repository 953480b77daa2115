"""The tables of README and docs/gpu.md equal those that the tool writes from the recorded runs."""

import re
from pathlib import Path

from specbench.log.store import read_run
from specbench.report.build import make_report
from tools.docs.result import with_tables

ROOT = Path(__file__).parents[2]


def test_the_readme_has_the_tables_of_its_recorded_runs_and_nothing_else_changes() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"\]\(results/recorded/([\w.-]+)\)", text)
    reports = [make_report(read_run(ROOT / "results/recorded" / name)) for name in names]
    assert reports and with_tables(text, reports) == text
    gpu_text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    assert "<!-- calculated -->" in gpu_text and with_tables(gpu_text, reports) == gpu_text
    speedup = re.findall(r"\| (\d\.\d\dx) \[", text)[-1]
    twice = with_tables(text.replace(speedup, "9.99x"), [*reports, *reports])
    assert "9.99x" not in twice and twice.count("\n| Vanilla | ") == 2 * len(reports)
    assert twice.split("<!-- /table -->")[1] == text.split("<!-- /table -->")[1]
