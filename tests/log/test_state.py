from __future__ import annotations

from pathlib import Path

import pytest

from specbench.errors import RunFolderError
from specbench.log.state import (
    is_being_written,
    num_records,
    run_folder,
    run_folders,
    state,
)
from specbench.log.store import HEADER, SAMPLES, RunFolder, pooled_folders
from tests.support.headers import make_header


def make_run(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / HEADER).write_text("{}")
    return path


def test_a_run_is_its_folder_or_a_file_in_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert run_folder(run) == run_folder(run / HEADER) == run_folder(run / SAMPLES) == run
    assert run_folder(run / "other.json") == run / "other.json"


def test_a_suite_has_a_folder_for_each_run_and_a_pool_or_a_run_is_one(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "suite" / name) for name in ("b", "a")]
    assert run_folders(tmp_path / "suite") == sorted(runs)
    assert pooled_folders(tmp_path / "suite") == []
    pooled = [make_run(tmp_path / "pool" / f"run-{number}") for number in (1, 2, 10)]
    assert pooled_folders(tmp_path / "pool") == pooled
    assert run_folders(tmp_path / "pool") == [tmp_path / "pool"]
    assert run_folders(runs[0] / HEADER) == [runs[0]]


def test_a_run_whose_process_is_gone_has_stopped(tmp_path: Path) -> None:
    running = make_header({"status": "running"})
    with RunFolder(tmp_path / "run"):
        assert is_being_written(tmp_path / "run")
        assert state(tmp_path / "run", running) == "running"
    assert state(tmp_path / "run", running) == "stopped"
    assert state(tmp_path / "run", make_header({"status": "failed"})) == "failed"
    assert not is_being_written(tmp_path / "nowhere")


def test_records_are_whole_lines(tmp_path: Path) -> None:
    assert num_records(tmp_path) == 0
    (tmp_path / SAMPLES).write_text("{}\n{}\n{")
    assert num_records(tmp_path) == 2


def test_records_without_a_header_are_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as run:
        assert not run.has_run()
        (tmp_path / "run" / SAMPLES).write_text("{}\n")
        with pytest.raises(RunFolderError, match=r"no run\.json that says what they are"):
            run.has_run()
        (tmp_path / "run" / HEADER).write_text("{}")
        assert run.has_run()
