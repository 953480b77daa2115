"""Find runs in folders (single runs, pools and suites), and the state of a run.

A pool has the runs of one command (`specbench run --runs`) in "run-1", "run-2" and so on. A suite
has runs with other names.
"""

import fcntl
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from specbench.errors import RunFolderError
from specbench.log.audit import SAMPLES
from specbench.log.files import compressed_path, open_lines
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.log.store import HEADER, read_header, read_run

_RUN_OF_POOL = re.compile(r"run-\d+")


def run_folder(path: Path) -> Path:
    """The folder of a run. `path` is the folder itself or a file in it."""
    names = (HEADER, SAMPLES, compressed_path(Path(SAMPLES)).name)
    return path.parent if path.name in names and not path.is_dir() else path


def run_folders(path: Path) -> list[Path]:
    """The folders of a suite's runs, in order. For a run or a pool, only its folder."""
    folders_of_suite = sorted(file.parent for file in path.glob(f"*/{HEADER}"))
    is_run = not folders_of_suite or (path / HEADER).exists()
    return [run_folder(path)] if is_run or pooled_folders(path) else folders_of_suite


def pooled_folders(path: Path) -> list[Path]:
    """The folders run-1, run-2 and so on of a pool's runs, in the order of the numbers. There are
    none if the folder is not a pool, because it is a run or has runs with other names.
    """
    folders = [file.parent for file in path.glob(f"*/{HEADER}")]
    is_pool = all(_RUN_OF_POOL.fullmatch(folder.name) for folder in folders)
    if not is_pool or (path / HEADER).exists():
        return []
    return sorted(folders, key=lambda folder: int(folder.name.removeprefix("run-")))


def single_runs(paths: Iterable[Path]) -> list[Path]:
    """The given folders, but with the folders of its runs in place of each pool's folder."""
    return [folder for path in paths for folder in pooled_folders(path) or [path]]


def read_runs(path: Path, *, is_lenient: bool = False) -> Run:
    """Read the run in a folder, or the pool of the runs in its subfolders.

    Raises:
        RunFolderError: there is no run, or one cannot be read.
        UserError: the runs in the folder are not runs of the same work on one machine.
    """
    runs = [read_run(folder, is_lenient=is_lenient) for folder in single_runs([path])]
    return runs[0] if runs[0].path == path else pooled_in(path, runs)


def readable_runs(
    paths: Sequence[Path], read: Callable[[Path], Run], say: Callable[[str], None]
) -> list[Run]:
    """The runs that `read` reads from these folders. A folder that it cannot read (RunFolderError)
    is left out, and `say` gets the reason as a sentence.

    Raises:
        RunFolderError: no folder can be read. The message is about the last one.
    """
    runs: list[Run] = []
    errors: list[RunFolderError] = []
    for path in paths:
        try:
            runs.append(read(path))
        except RunFolderError as error:
            errors.append(error)
    if errors and not runs:
        raise errors[-1]
    for read_error in errors:
        say(f"Left out: {read_error.message}")
    return runs


def pooled_in(path: Path, runs: Sequence[Run]) -> Run:
    """The pool of the runs in the subfolders of a folder. Its id is the name of the folder."""
    pooled = Run.pooled(runs)
    return replace(pooled, header=structs.replace(pooled.header, id=path.resolve().name))


def list_runs(root: Path) -> dict[Path, RunHeader | RunFolderError]:
    """Folder -> header, for each run in `root`, with the newest first. Runs whose header cannot be
    read come last, as folder -> error.
    """
    headers: dict[Path, RunHeader] = {}
    unreadable: dict[Path, RunFolderError] = {}
    for file in sorted(root.glob(f"*/{HEADER}")):  # the run.json of each run
        try:
            headers[file.parent] = read_header(file.parent)
        except RunFolderError as error:
            unreadable[file.parent] = error
    # `created` is the time of a run's start, ISO 8601.
    newest_first = sorted(headers, key=lambda folder: headers[folder].created, reverse=True)
    return {folder: headers[folder] for folder in newest_first} | unreadable


def is_being_written(path: Path) -> bool:
    """True if a process holds the lock on the file of records of the run in a folder."""
    with suppress(FileNotFoundError, PermissionError), (path / SAMPLES).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def state(path: Path, header: RunHeader) -> str:
    """The status of a run, or `stopped` if the header says `running` but its process is gone."""
    is_gone = header.status == "running" and not is_being_written(path)
    return "stopped" if is_gone else header.status


def num_records(path: Path) -> int:
    """The number of complete records in the folder of a run."""
    with suppress(OSError), open_lines(path / SAMPLES) as file:
        return sum(line.endswith(b"\n") for line in file)
    return 0
