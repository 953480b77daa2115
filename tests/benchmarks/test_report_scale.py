"""benchmarks/report_scale.py: a report can read its simulated records."""

from pathlib import Path

from benchmarks.gate_errors import METHODS, TASKS
from benchmarks.report_scale import write_run
from specbench.log.store import read_run


def test_the_simulated_records_are_a_whole_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", 9))
    assert len(run.records) == 9 * len(METHODS) * len(TASKS)
    assert {record.status for record in run.records} == {"ok"}
