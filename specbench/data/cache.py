"""Download published prompt files from pinned URLs into a cache, and check them by sha256.

The cache also keeps the hashes of large files.
"""

import errno
import hashlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from specbench.data.hub import is_html, is_offline
from specbench.data.tasks import PaperSource
from specbench.errors import UserError, os_errors, time_limit
from specbench.log.files import write_whole

DOWNLOAD_LIMIT_S = 600.0
"""Seconds that a prompt file may take to download."""
STALL_LIMIT_S = 30.0
"""Seconds after which a download fails if its server sends nothing."""
CACHE_VARIABLE = "SPECBENCH_CACHE"
"""The environment variable that moves the cache folder.

Runs need not record it: prompt files are checked by sha256, and a run's header has the hash of
tuned settings.
"""
_LARGE_FILE_BYTES = 16 * 2**20
"""Bytes of the smallest file whose hash is kept."""
_FRESH_NS = 10**9
"""A hash is kept only if the file has not changed for this many nanoseconds. If two changes follow
each other closely, the file may have the same time after both.
"""


def cache_dir() -> Path:
    """Return $SPECBENCH_CACHE, or the platform's cache folder."""
    chosen_folder = os.environ.get(CACHE_VARIABLE)
    if chosen_folder:
        return Path(chosen_folder).expanduser()
    import pooch

    return Path(pooch.os_cache("specbench"))


def paper_file(task: str, source: PaperSource, *, offline: bool, hint: str = "") -> Path:
    """Return the published file of a task with its hash checked. Download it if it is not cached.

    The cache folder may be read-only if it has the file.

    Raises:
        UserError: the file cannot be downloaded, or differs from the one pinned in the card.
    """
    path = cache_dir() / source.path
    if path.is_file():
        _check_hash(path, source)
        return path
    by_hand = f"put {source.url} at {path} ({CACHE_VARIABLE} moves the folder)."
    hint = f"{hint} Or {by_hand}" if hint else f"P{by_hand.removeprefix('p')}"
    if is_offline(offline):
        raise UserError(
            f"The paper prompts of {task} are not in the cache, and the run is offline: {path}",
            hint,
        )
    _download(task, source, path, hint)
    return path


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_sha256(path: Path) -> str:
    """Return the SHA-256 of a file. The hash of a large file is kept in the cache.

    The file is hashed again if its inode, size or times change. If the cache cannot be written, no
    hash is kept.
    """
    stat = path.stat()
    if stat.st_size < _LARGE_FILE_BYTES:
        return file_sha256(path)
    version = f"{stat.st_dev}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}"
    digest_file = cache_dir() / "sha256" / version
    with suppress(OSError, ValueError):
        cached_digest = digest_file.read_text(encoding="ascii")
        if len(cached_digest) == 64:
            return cached_digest
    digest = file_sha256(path)
    if time.time_ns() - stat.st_ctime_ns < _FRESH_NS:
        return digest
    with suppress(OSError):
        digest_file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(digest_file, digest.encode())
    return digest


def _check_hash(path: Path, source: PaperSource) -> None:
    with os_errors(f"{path} cannot be read", "Make it readable."):
        digest = file_sha256(path)
    if digest != source.sha256:
        raise UserError(
            f"{path} is not the published file: sha256 is {digest}, expected {source.sha256}.",
            "Delete it and run `specbench fetch`; to use it as it is: `--prompts FILE.jsonl`.",
        )


def _download(task: str, source: PaperSource, path: Path, hint: str) -> None:
    """Download a published file to a path. Network errors get the `hint`."""
    import pooch
    import requests.exceptions

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=2**16, timeout=STALL_LIMIT_S
    )
    try:
        with time_limit(DOWNLOAD_LIMIT_S, f"The download of {source.url}", hint):
            pooch.retrieve(
                source.url,
                known_hash=f"sha256:{source.sha256}",
                fname=path.name,
                path=path.parent,
                downloader=partial(_load_file, downloader),
            )
    except requests.exceptions.RequestException as error:
        message = f"The paper prompts of {task} cannot be downloaded: {_reason(error)}"
        raise UserError(message, hint) from error
    except ValueError as error:  # the hash is wrong, and the message has both hashes
        message = f"{source.url} is not the file the card pins: {error}"
        raise UserError(message, "Nothing was kept. Try again; a proxy may rewrite it.") from error
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise UserError(
            f"Cannot write the prompts of {task} to {path.parent}: {reason}.",
            f"Point {CACHE_VARIABLE} to a folder that can be written.",
        ) from error


def _load_file(downloader: Callable[..., object], url: str, output: str, pooch: object) -> None:
    """Download a file, but refuse a web page that comes in its place."""
    downloader(url, output, pooch)
    with Path(output).open("rb") as file:
        if is_html(file.read(99)):
            raise ValueError("the answer is an HTML page")


def _reason(error: Exception) -> str:
    """Return the root cause of a chain of network errors."""
    cause: BaseException = error
    while (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    return f"{type(error).__name__} ({cause})"
