"""The state of a run as its folder shows it: still written to or not, and how far it came.

Read from file names and locks.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from specbench.log.header import RunHeader
from specbench.log.store import HEADER, SAMPLES, pooled_folders


def run_folder(path: Path) -> Path:
    """The folder of a run that is given as itself, or as one of its files."""
    return path.parent if path.name in (HEADER, SAMPLES) and not path.is_dir() else path


def run_folders(path: Path) -> list[Path]:
    """The folders of the runs of a suite, in order; or the one of a run or of a pool."""
    of_suite = sorted(file.parent for file in path.glob(f"*/{HEADER}"))
    is_run = not of_suite or (path / HEADER).exists()
    return [run_folder(path)] if is_run or pooled_folders(path) else of_suite


def is_being_written(path: Path) -> bool:
    """True if a process holds the lock of the run in a folder."""
    import fcntl

    with suppress(FileNotFoundError, PermissionError), (path / SAMPLES).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def state(path: Path, header: RunHeader) -> str:
    """The run's status; `stopped` if it says `running` and its process is gone."""
    is_gone = header.status == "running" and not is_being_written(path)
    return "stopped" if is_gone else header.status


def num_records(path: Path) -> int:
    """Whole records in the folder of a run."""
    try:
        with (path / SAMPLES).open("rb") as file:
            return sum(1 for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return 0
