"""Run files on full disks, with second writers, and with programs that replace them.

The state of a run in its folder, and its audit, which is ignored if the run was continued after it.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from unittest import mock

import pytest

from specbench.errors import RunFolderError
from specbench.log.audit import AUDIT, read_audit, write_audit
from specbench.log.files import LineFile
from specbench.log.folders import num_records, pooled_folders, run_folders
from specbench.log.store import HEADER, SAMPLES, RunFolder, read_run, read_trace
from specbench.types import TracedStep
from tests.faults.limits import file_size_limit
from tests.support.audits import failed_audit, passed_audit, stored_audit
from tests.support.headers import make_header
from tests.support.records import record, store
from tests.support.refusals import error_with


def test_a_second_writer_is_refused_until_the_first_one_ends(tmp_path: Path) -> None:
    """Deleting other files does not let the second writer in."""
    with RunFolder(tmp_path) as folder:
        folder.write_header(make_header())
        (tmp_path / HEADER).unlink()
        assert [file.name for file in tmp_path.iterdir()] == [SAMPLES]
        with pytest.raises(RunFolderError, match="Another process is writing"), RunFolder(tmp_path):
            pass
    with RunFolder(tmp_path):
        pass


@pytest.mark.parametrize("size", range(0, 60, 7))
def test_a_line_cut_by_a_full_disk_is_removed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "lines"
    with file_size_limit(size):
        file = LineFile(path)
        with pytest.raises(RunFolderError, match="cannot be written: File too large"):
            for _ in range(10):
                file.append(b"ten bytes\n")
        file.close()
    assert path.read_bytes() == b"ten bytes\n" * (size // 10)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("os.ftruncate", errno.EIO, "Input/output"), ("fcntl.flock", errno.ENOLCK, "has no locks")],
)
def test_a_folder_that_cannot_be_opened_is_not_locked(
    tmp_path: Path, name: str, code: int, said: str
) -> None:
    broken = mock.patch(name, side_effect=OSError(code, "Input/output error"))
    with broken, pytest.raises(RunFolderError, match=said):
        RunFolder(tmp_path).__enter__()
    with RunFolder(tmp_path):
        pass


CHANGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: (path / SAMPLES).unlink(),
    "saved by an editor": lambda path: Path(copy(path / SAMPLES, path / "new")).replace(
        path / SAMPLES
    ),
    "renamed": lambda path: path.rename(path.with_name("elsewhere")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_replacing_the_file_stops_its_writer(tmp_path: Path, change: str) -> None:
    path = tmp_path / "run"
    with RunFolder(path) as folder:
        folder.append(record(0))
        CHANGES[change](path)
        for write in (lambda: folder.append(record(1)), lambda: folder.write_header(make_header())):
            with pytest.raises(RunFolderError, match=r"removed, moved or replaced"):
                write()


def test_a_header_that_does_not_fit_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write_header(make_header({"created": "old"}))
        with file_size_limit(100), pytest.raises(RunFolderError, match="cannot be written"):
            folder.write_header(make_header({"created": "new"}))
    assert read_run(tmp_path).header.created == "old"
    assert {file.name for file in tmp_path.iterdir()} == {"run.json", "samples.jsonl"}


def test_a_trace_that_was_written_twice_is_read_once(tmp_path: Path) -> None:
    step = TracedStep((0,), (0.0,), (0,))
    with RunFolder(tmp_path) as folder:
        with file_size_limit(0), pytest.raises(RunFolderError):
            folder.append(record(0, trace=(step,)))
        folder.append(record(0, trace=(step,)))
        trace = tmp_path / "trace.jsonl"
        trace.write_bytes(trace.read_bytes() * 2)
    assert [line.sample_id for line in read_trace(tmp_path)] == ["gsm8k/0"]


def make_run(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / HEADER).write_text("{}")
    return path


def test_a_suite_is_several_folders_and_a_pool_is_one(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "suite" / name) for name in ("b", "a")]
    assert run_folders(tmp_path / "suite") == sorted(runs)
    assert pooled_folders(tmp_path / "suite") == []
    pooled = [make_run(tmp_path / "pool" / f"run-{number}") for number in (1, 2, 10)]
    assert pooled_folders(tmp_path / "pool") == pooled
    assert run_folders(tmp_path / "pool") == [tmp_path / "pool"]
    assert run_folders(runs[0] / HEADER) == [runs[0]]


def test_records_are_whole_lines(tmp_path: Path) -> None:
    assert num_records(tmp_path) == 0
    (tmp_path / SAMPLES).write_text("{}\n{}\n{")
    assert num_records(tmp_path) == 2


def test_records_without_a_header_are_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as run:
        assert not run.has_run()
        (tmp_path / "run" / SAMPLES).write_text("{}\n")
        with pytest.raises(RunFolderError, match=r"no run\.json, which describes the run"):
            run.has_run()
        (tmp_path / "run" / HEADER).write_text("{}")
        assert run.has_run()


AUDITED = stored_audit(passed_audit("pld", 1.0), failed_audit("sps", 1.0, 2.0), num_records=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store(tmp_path, make_header(), [record()])


def test_an_audit_is_read_back_with_its_run(folder: Path) -> None:
    assert read_run(folder).audit is None
    write_audit(folder, AUDITED)
    assert read_run(folder).audit == AUDITED == read_audit(folder)
    assert [audit.level for audit in AUDITED.at("sps", 1.0)] == [2.0]
    assert AUDITED.smallest_tv == 0.05


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": 2}', b'{"schema": 1}', b"[]"])
def test_a_damaged_audit_gives_one_message(folder: Path, content: bytes) -> None:
    (folder / AUDIT).write_bytes(content)
    with error_with(RunFolderError, AUDIT, hint="specbench audit"):
        read_run(folder)
