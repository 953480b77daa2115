"""Files are replaced as a whole. Each writer has a scratch file, and errors name the file."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from specbench.log.files import scratch_files, write_whole
from tests.faults.limits import file_size_limit

SIZE = 100_000
FORK = multiprocessing.get_context("fork")


@pytest.mark.parametrize("kind", [threading.Thread, FORK.Process])
def test_writers_of_one_file_do_not_disturb_each_other(kind: Any, tmp_path: Path) -> None:
    path, failed = tmp_path / "file", FORK.Event()

    def write(letter: bytes) -> None:
        try:
            for _ in range(60):
                write_whole(path, letter * SIZE)
        except BaseException:
            failed.set()

    write_whole(path, b"a" * SIZE)
    writers = [kind(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        content = path.read_bytes()
        assert content == content[:1] * SIZE, "the file is incomplete, or mixes two writers"
    assert not failed.is_set()
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_only_scratch_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def end_within_a_write() -> None:
        with patch("os.fsync", lambda _: os._exit(0)):
            write_whole(path, b"new")

    process = FORK.Process(target=end_within_a_write)
    process.start()
    process.join()
    (left,) = scratch_files(path)
    living = left.with_name(left.name.replace(f"-{process.pid}-", f"-{os.getppid()}-"))
    of_another_machine = left.with_name(".file.00000000-1-1.new")
    for file in (living, of_another_machine):
        file.touch()
    write_whole(path, b"new")
    assert {*tmp_path.iterdir()} == {path, living, of_another_machine}


@pytest.mark.parametrize("name", ["file", "\N{GRINNING FACE}" * 60, "a" * 250])
def test_a_file_may_have_a_name_of_any_length(name: str, tmp_path: Path) -> None:
    write_whole(tmp_path / name, b"new")
    assert (tmp_path / name).read_bytes() == b"new"


def test_an_error_names_the_file_and_not_its_scratch_file(tmp_path: Path) -> None:
    path, absent = tmp_path / "file", tmp_path / "none" / "file"
    write_whole(path, b"old")
    with file_size_limit(10), pytest.raises(OSError, match="too large") as full:
        write_whole(path, b"x" * 100)
    with pytest.raises(FileNotFoundError) as missing:
        write_whole(absent, b"new")
    assert [full.value.filename, missing.value.filename] == [str(path), str(absent)]
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"old", [path])
