"""Cache of published prompt files, downloaded from pinned URLs and checked by sha256.

Also whether the Hugging Face Hub can be reached, and what its client's errors mean.
"""

import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from specbench.data.tasks import PaperSource
from specbench.errors import UserError, describe_error, os_errors, time_limit
from specbench.log.files import write_whole

TIMEOUT_S = 15.0
DOWNLOAD_LIMIT_S, STALL_LIMIT_S = 600.0, 30.0
"""The longest that a prompt file may take to download, and to send nothing."""
CACHE_VARIABLE = "SPECBENCH_CACHE"
"""Moves the cache folder. Files are checked by sha256, so this cannot change a result."""
_LARGE = 16 * 2**20
"""Size in bytes from which the hash of a file is kept."""
_FRESH_NS = 10**9
"""Seconds after a change in which no hash is kept: a next change could have the same time."""


def is_offline(given: bool = False) -> bool:
    """True if the network must not be used: `given`, or by `HF_HUB_OFFLINE`."""
    return given or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def unreachable(dataset: str) -> Exception | None:
    """The error of asking the Hub about a data set; None if the Hub answers at all."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(dataset, timeout=TIMEOUT_S)
    except HfHubHTTPError:
        return None
    except Exception as error:  # the HTTP clients share no base class for connection errors
        return error
    return None


def is_html(start: bytes) -> bool:
    """True if an answer that starts like this is a web page."""
    return start[:99].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def failure_reason(error: Exception) -> str:
    """A failed call to the Hub as a clause: "the Hub cannot be reached (TimeoutError: ...)"."""
    if isinstance(error, json.JSONDecodeError):
        page = is_html(error.doc[:99].encode("utf-8", "replace"))
        what = "an HTML page, as of a proxy or a login" if page else "not JSON"
        return f"the Hub's answer is {what}"
    reason = describe_error(error)
    if isinstance(error, KeyError | TypeError | AttributeError | AssertionError):
        return f"the Hub's answer is malformed ({reason})"
    if "Consistency check failed" in reason:
        return f"the Hub sent a file of another size than it announced ({reason})"
    return f"the Hub cannot be reached ({reason})"


def cache_dir() -> Path:
    """$SPECBENCH_CACHE, or the platform's cache folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    import pooch

    return Path(pooch.os_cache("specbench"))


def paper_file(task: str, source: PaperSource, *, offline: bool, hint: str = "") -> Path:
    """The published file of a task, its hash checked; downloaded if it is not in the cache.

    A cached file is only read, so a read-only cache folder works.

    Raises:
        UserError: the file cannot be downloaded, or differs from the one pinned in the card.
    """
    path = cache_dir() / source.path
    if path.is_file():
        _check_hash(path, source)
        return path
    where = f"put {source.url} at {path} ({CACHE_VARIABLE} moves the folder)."
    where = f"{hint} Or {where}" if hint else f"P{where[1:]}"
    if is_offline(offline):
        lack = "are not in the cache, and the run is offline"
        raise UserError(f"The paper prompts of {task} {lack}: {path}", where)
    _download(task, source, path, where)
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_sha256(path: Path) -> str:
    """SHA-256 of the bytes of a file. The hash of a large file is kept in the cache.

    It is read again if its inode, size or times change. A cache that cannot be written is not used.
    """
    about = path.stat()
    if about.st_size < _LARGE:
        return file_sha256(path)
    times = f"{about.st_mtime_ns}-{about.st_ctime_ns}"
    kept = cache_dir() / "sha256" / f"{about.st_dev}-{about.st_ino}-{about.st_size}-{times}"
    with suppress(OSError, ValueError):
        if len(found := kept.read_text(encoding="ascii")) == 64:
            return found
    digest = file_sha256(path)
    if time.time_ns() - about.st_ctime_ns < _FRESH_NS:
        return digest
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, digest.encode())
    return digest


def _check_hash(path: Path, source: PaperSource) -> None:
    with os_errors(f"{path} cannot be read", "Make it readable."):
        found = file_sha256(path)
    if found != source.sha256:
        raise UserError(
            f"{path} is not the published file: sha256 is {found}, expected {source.sha256}.",
            "Delete it and run `specbench fetch`; to use it as it is: `--prompts FILE.jsonl`.",
        )


def _download(task: str, source: PaperSource, path: Path, where: str) -> None:
    import pooch
    import requests.exceptions

    pooch.get_logger().setLevel("WARNING")
    load = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=2**16, timeout=STALL_LIMIT_S
    )
    try:
        with time_limit(DOWNLOAD_LIMIT_S, f"The download of {source.url}", where):
            pooch.retrieve(
                source.url,
                known_hash=f"sha256:{source.sha256}",
                fname=path.name,
                path=path.parent,
                downloader=partial(_load_file, load),
            )
    except requests.exceptions.RequestException as error:
        message = f"The paper prompts of {task} cannot be downloaded: {_reason(error)}"
        raise UserError(message, where) from error
    except ValueError as error:  # a wrong hash; the message has both
        message = f"{source.url} is not the file the card pins: {error}"
        raise UserError(message, "Nothing was kept. Try again; a proxy may rewrite it.") from error
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        message = f"Cannot write the prompts of {task} to {path.parent}: {reason}."
        hint = f"Point {CACHE_VARIABLE} to a folder that can be written."
        raise UserError(message, hint) from error


def _load_file(load: Callable[..., object], url: str, output: str, pooch: object) -> None:
    load(url, output, pooch)
    with Path(output).open("rb") as file:
        if is_html(file.read(99)):
            raise ValueError("the answer is an HTML page")


def _reason(error: Exception) -> str:
    """The root cause of a chain of network errors."""
    cause: BaseException = error
    while (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    return f"{type(error).__name__} ({cause})"
