"""The transfer of files to a machine with a GPU: sizes, omitted files, pieces, packed results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.gpu import pieces
from benchmarks.gpu.travel import (
    ASIDE,
    MIB,
    UNREAD,
    ZOO,
    aside,
    main,
    pack,
    put_back,
    set_aside,
    size_text,
    travelling,
)
from specbench.errors import UserError
from tests.support.paths import ROOT

FILES = {
    "specbench/zoo/weights.bin": 47 * MIB,
    "specbench/code.py": MIB,
    "results/recorded/run/samples.jsonl": 8 * MIB,
    "docs/guide.md": 4 * MIB,
}
"""Bytes of the files of a repository of 60 MiB."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    (root / ".gitignore").write_text("build/\n", "utf-8")
    fill(root, FILES)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    return root


def fill(root: Path, files: Mapping[str, int]) -> None:
    """Write files of these sizes, which take no room on the disk."""
    for name, num_bytes in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(num_bytes)


def sizes(root: Path) -> dict[str, int]:
    return {str(path): num_bytes for path, num_bytes in travelling(root)}


def test_the_sum_counts_new_files_and_ignored_ones_that_are_carried(checkout: Path) -> None:
    assert size_text(checkout).startswith("60.0 MiB are sent")
    assert "aside" not in size_text(checkout)
    fill(checkout, {"build/wheels/torch.whl": 9 * MIB, "new.txt": MIB})
    assert size_text(checkout).startswith("61.0 MiB are sent")
    text = size_text(checkout, ["build/wheels", "build/absent"])
    assert text.startswith("70.0 MiB are sent") and "The limit is 64" in text and "aside" in text


def test_unread_files_are_set_aside_and_put_back(checkout: Path) -> None:
    before = sizes(checkout)
    set_aside(checkout, UNREAD)
    assert {*sizes(checkout)} == {*before} - {"results/recorded/run/samples.jsonl", "docs/guide.md"}
    set_aside(checkout, [*UNREAD, ZOO])  # twice, as after a stop
    assert sum(sizes(checkout).values()) < 2 * MIB
    assert put_back(checkout) == 3
    assert sizes(checkout) == before and put_back(checkout) == 0


def test_a_newer_file_is_not_overwritten(checkout: Path) -> None:
    set_aside(checkout, UNREAD)
    (checkout / "docs").mkdir(exist_ok=True)
    (checkout / "docs/guide.md").write_text("new", "utf-8")
    with pytest.raises(UserError, match=r"docs/guide\.md: changed while the file was set aside"):
        put_back(checkout)
    assert (checkout / "docs/guide.md").read_text("utf-8") == "new"
    assert (checkout / ASIDE / "docs/guide.md").exists()
    assert (checkout / "results/recorded/run/samples.jsonl").exists()
    (checkout / "docs/guide.md").unlink()
    assert put_back(checkout) == 1


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_files_are_back_after_a_command_and_after_a_stop(
    checkout: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    before = sizes(checkout)
    is_gone = "import pathlib, sys; sys.exit(pathlib.Path('docs/guide.md').exists())"
    handler = signal.getsignal(signal.SIGTERM)
    assert aside(checkout, UNREAD, [sys.executable, "-c", is_gone]) == 0
    signal.signal(signal.SIGTERM, handler)
    assert sizes(checkout) == before
    started = tmp_path / "started"
    waits = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(60)"
    code = (
        "import signal, sys; from pathlib import Path; from benchmarks.gpu import travel\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background\n"
        f"travel.ROOT = Path({str(checkout)!r})\n"
        f"sys.exit(travel.main(['aside', '--', sys.executable, '-c', {waits!r}]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL
    ) as program:
        while not started.exists():
            assert program.poll() is None
        program.send_signal(stop)
    assert program.returncode != 0
    assert put_back(checkout) == 0 and sizes(checkout) == before


def test_a_checkout_of_70_mib_travels_without_what_the_suite_does_not_read(checkout: Path) -> None:
    fill(checkout, {"reports/page.html": 10 * MIB})
    subprocess.run(["git", "add", "-A"], cwd=checkout, check=True)
    assert size_text(checkout).startswith("70.0 MiB are sent") and "aside" in size_text(checkout)
    before = sizes(checkout)
    set_aside(checkout, UNREAD)
    assert size_text(checkout).startswith("48.0 MiB are sent")
    assert put_back(checkout) == 3 and sizes(checkout) == before


@pytest.mark.parametrize("moment", ["set aside", "put back"])
def test_files_are_back_after_a_stop_while_they_are_moved(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before, replace = sizes(checkout), Path.replace
    moved: list[Path] = []

    def stopped(path: Path, target: Path) -> Path:
        moved.append(path)
        if len(moved) == (2 if moment == "set aside" else 4):
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", stopped)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        aside(checkout, UNREAD, [sys.executable, "-c", ""])
    signal.signal(signal.SIGTERM, handler)
    assert put_back(checkout) == (0 if moment == "set aside" else 1)
    assert sizes(checkout) == before


def test_pieces_are_joined_and_a_missing_or_damaged_one_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "a.whl"
    whole.write_bytes(bytes(range(256)) * 10)
    manifest = pieces.split(whole, tmp_path / "pieces", 1000)
    assert [piece.name for piece in manifest.pieces] == ["a.whl.0", "a.whl.1", "a.whl.2"]
    joined = pieces.join(tmp_path / "pieces", tmp_path / "out")
    assert joined.name == "a.whl" and joined.read_bytes() == whole.read_bytes()
    kept = tmp_path / "kept"
    for visit, missing in (("a.whl.0", ["a.whl.1", "a.whl.2"]), ("a.whl.1", ["a.whl.2"])):
        brought = tmp_path / visit
        brought.mkdir()
        for name in (visit, pieces.MANIFEST):
            (brought / name).write_bytes((tmp_path / "pieces" / name).read_bytes())
        assert pieces.take(brought, kept) == missing
    with pytest.raises(UserError, match=r"lacks a\.whl\.2 of a\.whl"):
        pieces.join(kept, tmp_path / "out")
    (tmp_path / "pieces/a.whl.1").write_bytes(b"damaged")
    for read in (pieces.take, pieces.join):
        with pytest.raises(UserError, match=r"a\.whl\.1 is damaged"):
            read(tmp_path / "pieces", tmp_path / "out")
    with pytest.raises(UserError, match=r"pieces\.json cannot be read"):
        pieces.join(tmp_path, tmp_path / "out")


def test_results_come_back_in_small_files_without_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "gpu"
    (results / "triton").mkdir(parents=True)
    (results / "triton" / "kernel.cubin").write_bytes(os.urandom(1000))
    (results / "table.txt").write_text("figures", "utf-8")
    (results / "samples.jsonl").write_bytes(os.urandom(20 * MIB))
    manifest = pack(results, tmp_path / "packed")
    packed = sorted(path.name for path in (tmp_path / "packed").iterdir())
    assert packed == ["pieces.json", "results.tgz.0", "results.tgz.1"]
    assert all((tmp_path / "packed" / name).stat().st_size < 16 * MIB for name in packed)
    assert len(manifest.pieces) == 2
    assert main(["join", str(tmp_path / "packed"), "--out", str(tmp_path / "back")]) == 0
    with tarfile.open(capsys.readouterr().out.strip()) as tar:
        assert {*tar.getnames()} == {"gpu", "gpu/table.txt", "gpu/samples.jsonl"}
    assert main(["join", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "pieces.json cannot be read" in capsys.readouterr().err


def test_this_checkout_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size"]) == 0
    assert float(capsys.readouterr().out.split()[0]) < 62
