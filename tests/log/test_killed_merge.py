"""A merge whose process is killed at any system call."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.log.merge import merged, write_run
from specbench.log.run import Run
from specbench.log.store import read_run
from tests.log.test_merge import FIRST, run_of


def killed_at(call: int, joined: Run, folder: Path) -> bool:
    """Write a run in a process that dies at this system call. Return False if it survived."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, 9)
        return code == 9
    call_numbers = itertools.count(1)

    def dying(function: Callable[..., object]) -> Callable[..., object]:
        """The function, wrapped so that it ends the process at the given call."""

        def counted(*args: object, **named: object) -> object:
            if next(call_numbers) == call:
                os._exit(9)
            return function(*args, **named)

        return counted

    try:
        for name in ("write", "fsync", "rename", "replace", "unlink", "ftruncate"):
            setattr(os, name, dying(getattr(os, name)))
        write_run(joined, folder)
        os._exit(0)
    except BaseException:
        os._exit(1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_merge_killed_at_any_call_never_looks_complete_and_can_be_repeated(
    tmp_path: Path,
) -> None:
    joined = merged([FIRST, run_of([3], "second")])
    for call in itertools.count(1):
        is_killed = killed_at(call, joined, tmp_path / "new")
        for file in tmp_path.rglob("run.json"):
            assert is_killed == (json.loads(file.read_text())["status"] == "running"), call
        if not is_killed:
            break
    assert call > 15
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert read_run(tmp_path / "new").records == joined.records
