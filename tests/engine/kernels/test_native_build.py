"""The library of compiled operations: its build, its folder, and how both can fail."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from specbench.engine.kernels import native_build
from specbench.engine.kernels.native_build import BuildError, load_library, user_folder
from specbench.engine.kernels.native_ops import native_ops
from specbench.engine.kernels.pick_ops import pick_native_ops

try:
    native_build.compiler()
except BuildError as reason:
    pytest.skip(str(reason), allow_module_level=True)


def test_the_library_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native_ops(torch.float32, folder)
    libraries = sorted(folder.glob("*.so"))
    monkeypatch.setattr(native_build, "_compiled", lambda *args: pytest.fail("compiled again"))
    native_ops(torch.float32, folder)
    assert sorted(folder.glob("*.so")) == libraries


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "no C compiler is installed (looked for {cc})"),
        ("echo why >&2; exit 1", "{cc} fails: why"),
        (r"printf '\377\033[31mwhy' >&2; exit 1", "{cc} fails: \ufffd [31mwhy"),
        ("kill -9 $$", "{cc} fails: signal 9 ended it"),
        ("exit 0", "No such file or directory"),
        ('for last; do :; done; echo half > "$last"', "file too short"),
    ],
)
def test_a_failed_compilation_leaves_torch_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    cc = tmp_path / "cc"
    libraries = tmp_path / "libraries"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    if script is not None:
        version = r"printf 'cc \377 1.2\n'"
        cc.write_text(f"#!/bin/sh\ntest $1 = --version && {{ {version}; exit; }}\n{script}\n")
        cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    picked = pick_native_ops(torch.float32, libraries)
    assert picked.name == "torch"
    assert picked.reason is not None
    assert reason.format(cc=cc) in picked.reason
    assert not [*libraries.glob("*"), *scratch.iterdir()]


@pytest.mark.parametrize("damage", ["cut", "changed", "writable", "open folder", "a link"])
def test_an_untrusted_library_is_compiled_again(tmp_path: Path, folder: Path, damage: str) -> None:
    native_ops(torch.float32, folder)
    content = {library.name: library.read_bytes() for library in folder.glob("*.so")}
    damaged = content
    if damage == "cut":
        damaged = {name: whole[:5000] for name, whole in content.items()}
    elif damage == "changed":
        damaged = {name: b"x" + whole[1:] for name, whole in content.items()}
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    for name, damaged_content in damaged.items():
        library = other / name
        library.write_bytes(damaged_content)
        os.utime(library, (0, 0))
        library.chmod(0o666 if damage == "writable" else 0o600)
        if damage == "a link":
            library.rename(tmp_path / name)
            library.symlink_to(tmp_path / name)
            os.utime(library, (0, 0), follow_symlinks=False)
    other.chmod(0o777 if damage == "open folder" else 0o700)
    assert native_ops(torch.float32, other).name.startswith("native code (")
    (compiled,) = [file for file in other.iterdir() if file.lstat().st_mtime]
    assert content[compiled.name] == compiled.read_bytes()
    for path in (compiled, other):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("is_owned", [False, True])
def test_a_folder_of_others_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_owned: bool
) -> None:
    """Whoever owns the folder, or can replace it through its parent, could put any code into it."""
    if is_owned:
        tmp_path.chmod(0o777)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    libraries = tmp_path / "libraries"
    assert native_ops(torch.float32, libraries).name.startswith("native code (")
    assert not [*libraries.iterdir()]


def test_half_a_build_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / "build-old").mkdir()
    newer = tmp_path / "build-new"
    with native_build._locked(tmp_path):
        newer.touch()
        assert native_ops(torch.float32, tmp_path).name.startswith("native code (")
        assert [*tmp_path.iterdir()] == [newer]
    newer.unlink()
    native_ops(torch.float32, tmp_path)
    assert [file.suffix for file in tmp_path.iterdir()] == [".so"]


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", "/home/me")
    assert user_folder() == Path("/home/me/.cache/specbench/native")
    monkeypatch.setenv("HOME", "relative")
    assert user_folder().is_absolute()


def test_code_is_compiled_even_if_its_folder_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert native_ops(torch.float32, file / "libraries").name.startswith("native code (")


def test_a_dtype_without_compiled_code_is_left_to_torch(tmp_path: Path) -> None:
    picked = pick_native_ops(torch.float16, tmp_path)
    assert picked.name == "torch"
    assert picked.reason == "there is no code for float16"


def test_a_compiler_that_hangs_fails_with_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*args: object, **named: object) -> object:
        raise subprocess.TimeoutExpired("cc", 120)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(BuildError, match="timed out after 120 seconds"):
        load_library(tmp_path, Path("libgomp.so"), is_half=False)
