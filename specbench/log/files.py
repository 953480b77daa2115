"""Write files so that kills, full disks and second processes do not damage them."""

import errno
import fcntl
import gzip
import os
import platform
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_native_id
from typing import Any
from zlib import crc32

from specbench.errors import RunFolderError

_MACHINE = platform.node().encode(errors="replace")
_LONGEST_NAME = 150
"""The names of scratch files repeat at most this many bytes of the file's name."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of the system for a full disk, a full quota and a file that is too large."""
REPEAT = "repeat the command"
"""Advice for commands that have no --resume."""


class LineFile:
    """An open file of lines, to which only one process at a time can append.

    The lock is on the file itself and ends with the process. If the file is deleted, its writer
    stops, so that there are never two writers. A last line without a newline is removed.

    Raises:
        RunFolderError: another process has the file open, or it cannot be written.
    """

    def __init__(self, path: Path, option: str = "--output") -> None:
        """Open or create the file, and lock it. A last line without a newline is cut off.

        `option` is the command-line option that names the folder, for messages. Errors of the
        system become a RunFolderError that names the path (see `folder_errors`).
        """
        self.path = path
        self._option = option
        with folder_errors(path, option):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)  # others can read it
            try:
                self._lock()
                self.check_in_place()  # raises if the file was replaced before it was locked
                os.ftruncate(self._descriptor, end_of_last_line(self._descriptor))
            except BaseException:
                self.close()
                raise

    def append(self, line: bytes) -> None:
        """Write a line, with its newline, to the end of the file, or leave the file unchanged.

        Raises:
            RunFolderError: the disk is full, or the file was moved or removed.
        """
        self.check_in_place()  # raises if the path leads to another file, or to none
        size_before = os.fstat(self._descriptor).st_size  # bytes
        with folder_errors(self.path, self._option):
            try:
                unwritten = memoryview(line)
                while unwritten:  # the system may write only a part of the bytes
                    num_written = os.write(self._descriptor, unwritten)
                    unwritten = unwritten[num_written:]
            except BaseException:
                os.ftruncate(self._descriptor, size_before)
                raise

    def cut(self, size: int) -> None:
        """Keep only the first `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def check_in_place(self) -> None:
        """Raise RunFolderError if the path leads to another file, or to none."""
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                return
        raise RunFolderError(
            f"{self.path} was removed, moved or replaced by another program during the run.",
            "Put the file back and continue with --resume, which runs what is missing.",
        )

    def close(self) -> None:
        os.close(self._descriptor)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(
                f"Another process is writing to {self.path.parent}.",
                f"Wait for it to end, or give another {self._option}.",
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be locked: {error.strerror}. Its filesystem has no locks.",
                f"Give an {self._option} on a local disk.",
            ) from error


def compressed_path(path: Path) -> Path:
    """The path of the compressed form of a file."""
    return path.with_name(f"{path.name}.gz")


@contextmanager
def open_lines(path: Path) -> Iterator[Any]:
    """Open a file of lines for reading as bytes, or its compressed form if only that one exists.

    Raises:
        OSError: the file is missing, unreadable or damaged.
    """
    compressed = compressed_path(path)  # the path with ".gz"
    if path.exists() or not compressed.exists():
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(compressed, "rb") as file:
            yield file
    except (EOFError, zlib.error) as error:  # raised by reads in the caller's block
        raise OSError(f"{compressed.name} is damaged: {error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Replace the content of the file at `path`. An error leaves the old file unchanged.

    The content is written to a scratch file in the same folder, which then replaces the file. Each
    writer has a separate scratch file. Scratch files of killed writers are removed first.

    Raises:
        OSError: the file cannot be written; the error's `filename` is `path`.
    """
    for old_scratch in scratch_files(path):
        if not _is_writing(old_scratch):  # its writer was killed
            with suppress(OSError):
                old_scratch.unlink()
    scratch = path.with_name(f"{_scratch_prefix(path)}{os.getpid()}-{get_native_id()}.new")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # waits until the content is on the disk
        scratch.replace(path)
    except BaseException as error:
        with suppress(OSError):
            scratch.unlink()
        if isinstance(error, OSError):  # name the file, not the scratch file
            error.filename, error.filename2 = str(path), None
        raise


def scratch_files(path: Path) -> list[Path]:
    """The scratch files of a file that processes of this machine are writing or left behind."""
    try:
        beside = list(path.parent.iterdir())
    except OSError:
        return []
    prefix = _scratch_prefix(path)
    return [file for file in beside if file.name.startswith(prefix) and file.suffix == ".new"]


def _scratch_prefix(path: Path) -> str:
    """The prefix of a file's scratch files, with a hash of the file's name and the machine."""
    name = os.fsencode(path.name)[:_LONGEST_NAME].decode(errors="ignore")
    return f".{name}.{crc32(path.name.encode(errors='replace') + _MACHINE):08x}-"


def _is_writing(scratch: Path) -> bool:
    """True if the process that writes a scratch file may be alive. The id of the process comes
    before the last "-" in the file's name.
    """
    try:  # signal 0 does nothing, but raises an error if there is no such process
        os.kill(int(scratch.stem.split("-")[-2]), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, IndexError, OverflowError):
        return True
    return True


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def folder_errors(
    path: Path, option: str = "--output", go_on: str = "continue with --resume"
) -> Iterator[None]:
    """Turn errors of the system into a RunFolderError that names the path.

    `option` is the command-line option that names the path, and `go_on` is the advice on what to do
    once the cause is removed.
    """
    try:
        yield
    except OSError as error:
        hint = "Free space" if error.errno in FULL else "Make it writable"
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}.",
            f"{hint}, then {go_on}; or choose another {option}.",
        ) from error


def end_of_last_line(descriptor: int) -> int:
    """The number of bytes up to and including the last newline of an open file, or 0 if it has
    none.

    The file is read in blocks of 64 KiB or less, from its end towards its start.
    """
    block_end = os.fstat(descriptor).st_size
    while block_end:
        block_start = max(0, block_end - 65536)
        block = os.pread(descriptor, block_end - block_start, block_start)
        newline_index = block.rfind(b"\n")
        if newline_index >= 0:
            return block_start + newline_index + 1
        block_end = block_start
    return 0
