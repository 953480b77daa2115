"""Hashes of large files, computed once."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from specbench.data import cache
from specbench.data.cache import cached_sha256


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "_LARGE_FILE_BYTES", 4)
    monkeypatch.setattr(cache, "_FRESH_NS", 0)
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A large file."""
    path = tmp_path / "weights"
    path.write_bytes(b"large")
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_large_file_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cached_sha256(file) == sha256(b"large")
    monkeypatch.delattr(cache, "file_sha256")
    assert cached_sha256(file) == sha256(b"large")


def test_a_file_of_the_same_size_and_time_is_read_again(file: Path) -> None:
    cached_sha256(file)
    about = file.stat()
    time.sleep(0.02)  # a tick of the filesystem's clock
    file.write_bytes(b"other")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert cached_sha256(file) == sha256(b"other")


def test_the_hash_of_a_file_that_was_just_written_is_not_kept(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_FRESH_NS", 10**12)
    for content in (b"large", b"other"):
        file.write_bytes(content)
        assert cached_sha256(file) == sha256(content)


def test_a_truncated_cache_entry_is_ignored(file: Path, tmp_path: Path) -> None:
    cached_sha256(file)
    (kept,) = (tmp_path / "cache" / "sha256").iterdir()
    kept.write_text("0123")
    assert cached_sha256(file) == sha256(b"large")


def test_a_cache_that_cannot_be_written_is_not_an_error(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in its place")
    assert cached_sha256(file) == sha256(b"large")
