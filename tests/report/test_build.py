"""Building a report: each run is measured once."""

from typing import Any

import pytest

from specbench.analysis import metrics
from specbench.report import build as source
from specbench.report.build import make_report, report_files
from tests.report.drawing import two_models


def test_every_rendering_together_measures_a_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def count(*run: Any, **options: Any) -> Any:
        measured.append(run)
        return metrics.measure(*run, **options)

    monkeypatch.setattr(source, "measure", count)
    report_files(make_report(two_models()))
    assert len(measured) == 2
