from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specbench.bench.store import RunFolder, list_runs, read_run
from specbench.errors import RunFolderError
from specbench.types import Phases, Record, SampleKey


def record(number: int = 0, **changes: Any) -> Record:
    key = SampleKey("pld:ngram=2", 0.0, "gsm8k", f"gsm8k/{number}", 0, 0)
    values = {
        "key": key, "status": "ok", "prompt_tokens": 9, "token_ids": (4, 5, 6), "text": "añ→",
        "stop_reason": "eos", "prefill_s": 0.5, "decode_s": 0.25, "accept_lengths": (2,),
        "num_nodes": (11,), "seed": 7,
    }  # fmt: skip
    return Record(**{**values, **changes})


def write(path: Path, *records: Record, **header: Any) -> None:
    with RunFolder(path) as folder:
        folder.write_header({"status": "complete", "created": "2026-01-01", **header})
        for one in records:
            folder.append(one)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    failed = Record(record(1).key, "error", 9, seed=7, error="boom")
    measured = record(2, phases=Phases(0.1, 0.2, 0.3, 0.4), peak_memory_bytes=7, energy_j=0.5)
    write(tmp_path, record(), failed, measured)
    run = read_run(tmp_path)
    assert run.records == (record(), failed, measured)
    assert run.header["schema"] == 1


def test_a_sample_line_holds_the_fixed_fields(tmp_path: Path) -> None:
    write(tmp_path, record())
    line = json.loads((tmp_path / "samples.jsonl").read_text())
    assert list(line) == [
        "schema", "method", "temperature", "task", "sample_id", "turn", "repeat", "status",
        "prompt_tokens", "token_ids", "num_tokens", "text", "stop_reason", "prefill_s", "decode_s",
        "accept_lengths", "num_nodes", "seed", "error",
    ]  # fmt: skip
    assert line["num_tokens"] == 3


def test_a_line_cut_short_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    write(tmp_path, record(0), record(1))
    samples = tmp_path / "samples.jsonl"
    samples.write_bytes(samples.read_bytes()[:-20])
    assert read_run(tmp_path).records == (record(0),)
    write(tmp_path, record(2))
    assert read_run(tmp_path).records == (record(0), record(2))


def test_a_file_of_one_cut_line_is_emptied(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "samples.jsonl").write_bytes(b'{"schema":1,')
    write(tmp_path, record(3))
    assert read_run(tmp_path).records == (record(3),)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    write(tmp_path, record(0))
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(RunFolderError, match="line 2 is no sample"):
        read_run(tmp_path)


def test_a_full_disk_is_told_and_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    with RunFolder(tmp_path) as folder:
        folder.append(record(0))
        real: Any = folder._samples

        class Full:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            def write(self, line: bytes) -> None:
                real.write(line[:30])
                real.flush()
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(folder, "_samples", Full())
        with pytest.raises(RunFolderError, match="No space left"):
            folder.append(record(1))
        monkeypatch.setattr(folder, "_samples", real)
        folder.append(record(2))
    assert read_run(tmp_path).records == (record(0), record(2))


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from specbench.bench.store import RunFolder\n"
        "RunFolder(Path(sys.argv[1])).__enter__()"
    )
    with RunFolder(tmp_path):
        second = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
        )
    assert "Another process is writing" in second.stderr
    with RunFolder(tmp_path):
        pass


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    header = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**header, "schema": 99}))
    with pytest.raises(RunFolderError, match=r"newer specbench \(schema 99"):
        read_run(tmp_path)


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no run\.json"):
        read_run(tmp_path)


def test_a_file_in_the_folders_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"), RunFolder(tmp_path / "taken"):
        pass


def test_runs_are_listed_newest_first_and_unreadable_ones_left_out(tmp_path: Path) -> None:
    for name, created in (("a", "2026-01-01"), ("b", "2026-03-01")):
        write(tmp_path / name, created=created)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("broken")
    assert [path.name for path, _ in list_runs(tmp_path)] == ["b", "a"]
