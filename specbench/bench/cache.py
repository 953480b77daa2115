"""The cache of published prompt files: found by sha256, or downloaded from their pinned URL.

Knows files, hashes and URLs. Knows nothing of what is in a file.
"""

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.bench.tasks import PaperSource
from specbench.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

CACHE_VARIABLE = "SPECBENCH_CACHE"
"""Moves the cache folder. What is read from it is checked by sha256, so it changes no result."""


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file that is in the cache, with its verified content hash."""

    path: Path
    sha256: str
    was_downloaded: bool


def cache_dir() -> Path:
    """$SPECBENCH_CACHE, or the platform's cache folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    import pooch

    return Path(pooch.os_cache("specbench"))


def paper_file(task: str, source: PaperSource, *, offline: bool) -> CachedFile:
    """The published file of a task, downloaded if it is not in the cache yet.

    A file that is there is only read: a read-only cache folder works. Raises UserError when the
    file is missing and cannot be downloaded, or is not the file the card pins.
    """
    path = cache_dir() / source.path
    if path.is_file():
        _check_hash(path, source)
        return CachedFile(path, source.sha256, was_downloaded=False)
    where = (
        f"`specbench fetch` downloads it where there is network; or put {source.url} at {path} "
        f"({CACHE_VARIABLE} moves the folder), or use `--prompts bundled`."
    )
    if offline:
        message = f"The paper prompts of {task} are not in the cache and --offline is set: {path}"
        raise UserError(message, where)
    _download(task, source, path, where)
    return CachedFile(path, source.sha256, was_downloaded=True)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_hash(path: Path, source: PaperSource) -> None:
    try:
        found = file_sha256(path)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}", "Make it readable.") from error
    if found != source.sha256:
        raise UserError(
            f"{path} is not the published file: sha256 is {found}, expected {source.sha256}.",
            "Delete it and run `specbench fetch`; to use it as it is: `--prompts FILE.jsonl`.",
        )


def _download(task: str, source: PaperSource, path: Path, where: str) -> None:
    import pooch
    import requests.exceptions

    pooch.get_logger().setLevel("WARNING")
    try:
        with _progress() as progress:
            bar = _Bar(progress, f"{task} prompts")
            pooch.retrieve(
                source.url,
                known_hash=f"sha256:{source.sha256}",
                fname=path.name,
                path=path.parent,
                downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=64 * 1024),
            )
    except requests.exceptions.RequestException as error:
        message = f"The paper prompts of {task} cannot be downloaded: {_reason(error)}"
        raise UserError(message, where) from error
    except ValueError as error:  # pooch's word for a hash that differs; it has both hashes
        message = f"{source.url} is not the file the card pins: {error}"
        raise UserError(message, "Nothing was kept. Try again; a proxy may rewrite it.") from error
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        message = f"Cannot write the prompts of {task} to {path.parent}: {reason}."
        hint = f"Point {CACHE_VARIABLE} to a folder that can be written."
        raise UserError(message, hint) from error


def _reason(error: Exception) -> str:
    """The end of a chain of network errors, where the cause is, without a traceback's noise."""
    cause: BaseException = error
    while (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    return f"{type(error).__name__} ({cause})"


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


class _Bar:
    """A rich progress bar behind the four names that pooch drives."""

    def __init__(self, progress: "Progress", description: str) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=None)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, value: float | None) -> None:
        self._progress.update(self._task, total=value or None)

    def update(self, num_bytes: int) -> None:
        self._progress.advance(self._task, num_bytes)

    def reset(self) -> None:
        self._progress.reset(self._task, total=self.total)

    def close(self) -> None:
        self._progress.stop()
