"""The state of a run in its folder, and its audit, which is ignored if the run went on."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from specbench.errors import RunFolderError
from specbench.log.audit import AUDIT, read_audit, records_hash, write_audit
from specbench.log.state import (
    is_being_written,
    num_records,
    run_folder,
    run_folders,
    state,
)
from specbench.log.store import HEADER, SAMPLES, RunFolder, pooled_folders, read_run
from specbench.report.notes import audit_note
from tests.support.audits import failed_audit, passed_audit, stored_audit
from tests.support.headers import make_header
from tests.support.records import record


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


AUDITED = stored_audit(passed_audit("pld", 1.0), failed_audit("sps", 1.0, 2.0), num_records=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with RunFolder(tmp_path) as folder:
        folder.write_header(make_header())
        folder.append(record())
    return tmp_path


def test_an_audit_is_read_back_with_its_run(folder: Path) -> None:
    assert read_run(folder).audit is None
    write_audit(folder, AUDITED)
    assert read_run(folder).audit == AUDITED == read_audit(folder)
    assert [one.level for one in AUDITED.at("sps", 1.0)] == [2.0]
    assert AUDITED.smallest_tv == 0.05


def test_an_audit_is_void_once_a_time_is_changed_and_one_without_hash_is_unknown(
    folder: Path,
) -> None:
    write_audit(folder, structs.replace(AUDITED, records_sha256=records_hash(folder)))
    assert read_run(folder).audit is not None
    samples = folder / "samples.jsonl"
    samples.write_bytes(samples.read_bytes().replace(b'"decode_s":0.25', b'"decode_s":0.24'))
    assert read_run(folder).audit is None
    write_audit(folder, AUDITED)
    assert read_run(folder).audit == AUDITED
    assert "it has no hash of the records" in audit_note(AUDITED).text


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": 2}', b'{"schema": 1}', b"[]"])
def test_a_damaged_audit_is_one_message(folder: Path, content: bytes) -> None:
    (folder / AUDIT).write_bytes(content)
    with pytest.raises(RunFolderError) as caught:
        read_run(folder)
    assert AUDIT in caught.value.message
    assert "specbench audit" in caught.value.hint
