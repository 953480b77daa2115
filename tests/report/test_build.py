"""Building a report: each run is measured once, with its trace if there is one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis import metrics
from specbench.report import build as source
from specbench.report.build import make_report
from specbench.report.files import report_files
from tests.report.drawing import one_sample, two_models


def test_a_trace_beside_the_samples_becomes_a_calibration(tmp_path: Path) -> None:
    steps = [{"parents": [-1, 0], "log_probs": [None, -0.1], "path": [0, 1]}]
    key = {"task": "gsm8k", "sample_id": "gsm8k/a", "turn": 0, "repeat": 0}
    line = json.dumps({"method": "pld", "temperature": 0.0, **key, "steps": steps})
    (tmp_path / "trace.jsonl").write_text(f"{line}\n{line}\n{line[:20]}")
    run = one_sample()
    report = make_report(replace(run, path=tmp_path))
    (found,) = report.sources[0].calibration.items()
    assert found[0] == ("pld", 0.0)
    assert found[1][0].num_nodes == 1  # a line that is written twice counts once
    files = report_files(report)
    assert "calibration.svg" in files
    assert b'"by_depth"' in files["report.json"]


def test_every_rendering_together_measures_a_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def count(*run: Any, **options: Any) -> Any:
        measured.append(run)
        return metrics.measure(*run, **options)

    monkeypatch.setattr(source, "measure", count)
    report_files(make_report(two_models()))
    assert len(measured) == 2
