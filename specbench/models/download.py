"""Downloads of a repository's files, with a limit on their time and on their silence.

The client of the Hub has neither, and its threads cannot be interrupted: it works in a process of
its own, which is ended at a limit.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from specbench.data.downloads import (
    LIMIT_VARIABLE,
    STALL_VARIABLE,
    DownloadLimits,
    download_limits,
    progress_bar,
    raise_hint,
)
from specbench.data.hub import HubFailure
from specbench.errors import CheckpointError

LIMIT_S, STALL_LIMIT_S = 6 * 3600.0, 60.0
_POLL_S = 0.2
_WORKER = "specbench.models.download_worker"


class DownloadFailed(Exception):
    """A download that the Hub, the network or the disk ended. The first argument says how."""

    @property
    def failure(self) -> HubFailure:
        failure: HubFailure = self.args[0]
        return failure


def download(repo: str, revision: str, sizes: Mapping[str, int | None], *, what: str) -> Path:
    """The local folder of a revision, with the files that `sizes` names, in bytes where known.

    Partial files are removed after a failure; files that are complete stay in the cache.

    Raises:
        CheckpointError: the download took too long, or received nothing for too long.
        DownloadFailed: the Hub, the network or the disk ended it.
    """
    from huggingface_hub import constants

    limits = download_limits(total_s=LIMIT_S, stall_s=STALL_LIMIT_S)
    cache = Path(constants.HF_HUB_CACHE)
    request = {
        "repo_id": repo,
        "revision": revision,
        "allow_patterns": [glob.escape(name) for name in sizes],
        "cache_dir": str(cache),
        "endpoint": constants.ENDPOINT,
    }
    folder = f"models--{repo.replace('/', '--')}"
    total = None if None in sizes.values() else sum(filter(None, sizes.values()))
    try:
        with tempfile.TemporaryFile("w+") as errors, _worker(request, errors) as process:
            _wait(process, cache / folder, total, limits, f"{what}: the download of {repo}")
            return _answer(process, errors)
    except BaseException:
        _remove_partial_files(cache / folder / "blobs", cache / ".locks" / folder)
        raise


@contextmanager
def _worker(request: Mapping[str, Any], errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """The process that downloads, killed when the block ends."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", _WORKER],
        stdin=pipe,
        stdout=pipe,
        stderr=errors,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):
            process.stdin.close()
        if process.stdout is not None:
            process.stdout.close()


def _wait(
    process: subprocess.Popen[str],
    folder: Path,
    total: int | None,
    limits: DownloadLimits,
    name: str,
) -> None:
    """Wait until the process ends. CheckpointError if it reaches a limit."""
    before = _num_bytes(folder)
    start = last = time.monotonic()
    received = 0
    with progress_bar() as progress:
        bar = progress.add_task(folder.name.removeprefix("models--"), total=total)
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            now = time.monotonic()
            if (num_bytes := _num_bytes(folder) - before) != received:
                received, last = num_bytes, now
                progress.update(bar, completed=received)
            if process.poll() is not None:
                return
            got = f"({_megabytes(received)}{f' of {_megabytes(total)}' if total else ''} MB so far)"
            kept = "Complete files are kept, so the same command continues."
            if now - last > limits.stall_s:
                message = f"{name} received nothing for {limits.stall_s:g} s {got}."
                raise CheckpointError(
                    message, f"{kept} {raise_hint(STALL_VARIABLE, limits.stall_s)}"
                )
            if now - start > limits.total_s:
                message = f"{name} took longer than {limits.total_s:g} s {got}."
                raise CheckpointError(
                    message, f"{kept} {raise_hint(LIMIT_VARIABLE, limits.total_s)}"
                )


def _answer(process: subprocess.Popen[str], errors: IO[str]) -> Path:
    assert process.stdout is not None
    try:
        answer = json.loads(process.stdout.read())
    except ValueError:
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise DownloadFailed(HubFailure((), f"the download's process ended: {last}")) from None
    if "failure" in answer:
        raise DownloadFailed(HubFailure(**answer["failure"]))
    return Path(answer["path"])


def _num_bytes(folder: Path) -> int:
    """Bytes of the files that the cache has of a repository, partial ones included."""
    total = 0
    with suppress(OSError), os.scandir(folder / "blobs") as entries:
        for entry in entries:
            with suppress(OSError):  # renamed in between
                total += entry.stat().st_size
    return total


def _remove_partial_files(blobs: Path, locks: Path) -> None:
    """Remove the partial files that no other process is downloading."""
    from filelock import FileLock, Timeout

    for partial in blobs.glob("*.incomplete"):
        lock = locks / f"{partial.name.split('.')[0]}.lock"
        with suppress(OSError, Timeout), FileLock(lock, timeout=0):
            partial.unlink(missing_ok=True)


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f}"
