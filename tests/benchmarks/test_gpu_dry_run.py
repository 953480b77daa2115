"""The dry run makes a small version of every row. A suite that was interrupted continues."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu import goals, pieces, row, suite
from benchmarks.gpu.dry import small
from benchmarks.gpu.row import Row
from benchmarks.gpu.rows import EXPLAINED, HALF_OF_MIXTRAL, all_rows
from benchmarks.gpu.suite import _parse, main
from benchmarks.gpu.travel import KERNELS, pack
from specbench.log.store import read_run
from specbench.measure.local.stand_ins import stand_in_of
from specbench.models.cards import find_model
from tests.support.paths import ROOT

UNUSED = ("datasets", "gguf", "pooch", "aiohttp")
"""Packages that a machine with a GPU may lack."""
ROWS = all_rows(_parse([]))


def test_the_dry_run_has_every_row_and_needs_no_gpu() -> None:
    for real, dry in zip(ROWS, map(small, ROWS), strict=True):
        assert (dry.name, dry.after, dry.figures) == (real.name, real.after, real.figures)
        assert dry.is_required
        assert not {"cuda", "bfloat16", "vicuna-13b", "llama3-8b"} & {*dry.command}
        if dry.spec and real.spec:
            assert (dry.spec.device, dry.spec.dtype) == ("cpu", "float32")
            assert find_model(dry.spec.model).is_embedded or dry.spec.weights == "stand-in"
            assert dry.spec.methods == (real.spec.methods or EXPLAINED)


def test_half_of_mixtral_has_half_the_layers_and_says_so() -> None:
    half, whole = stand_in_of(find_model(HALF_OF_MIXTRAL)), find_model("mixtral-8x7b").shape
    assert half.name == "half-of-mixtral-8x7b"
    assert whole and half.shape == replace(whole, num_layers=whole.num_layers // 2)
    assert 2 * half.target.num_numbers < 48e9


def test_an_interrupted_suite_keeps_its_lines_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row(name, "", 1, command=("timeit", "-n", "1", "pass")) for name in ("a", "b", "c")]
    monkeypatch.setattr(suite, "all_rows", lambda given: rows)
    begun: list[str] = []

    def cut_at_the_second(started: Row, folder: Path, left_s: float) -> dict[str, Any]:
        begun.append(started.name)
        if len(begun) > 1:
            raise KeyboardInterrupt
        return row.run_row(started, folder, left_s)

    monkeypatch.setattr(suite, "run_row", cut_at_the_second)
    log = tmp_path / "rows.jsonl"
    for number, expected in enumerate((["a", "b"], ["b", "c"]), 1):
        with pytest.raises(KeyboardInterrupt):
            main(["--dry-run", "--out", str(tmp_path)])
        assert begun == expected
        begun.clear()
        with log.open("a") as file:
            file.write('{"row": "b", "sta')  # cut in the middle of a line
        assert list(row.read_rows(log, ["dry run"])) == ["a", "b"][:number]
    assert main(["--dry-run", "--out", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["row"], line["status"]) for line in lines] == [(name, "ok") for name in "abc"]


def test_figures_of_an_earlier_try_are_not_those_of_a_row(tmp_path: Path) -> None:
    empty = Row("empty", "", 5, command=("timeit", "pass"), figures=row.Figures("x.jsonl", "."))
    (tmp_path / "x.jsonl").write_text("figures")
    assert "left no figures" in row.run_row(empty, tmp_path, 60)["reason"]


def visit(out: Path, packages: Path) -> tuple[str, bool]:
    """Run the dry run and kill it as soon as a row is complete.

    Return its output, and True if it ended by itself.
    """
    environment = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"}
    environment.pop("TRITON_INTERPRET", None)  # kernels are compiled
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--out", str(out)]
    said = ""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdout
        was_complete = False
        for line in process.stdout:
            said += line
            if was_complete and line.endswith("…\n"):  # the next row has begun
                suite_process = psutil.Process(process.pid)
                suite_process.suspend()  # it starts no more processes
                all_processes = [*suite_process.children(recursive=True), suite_process]
                for running in all_processes:
                    running.kill()
                psutil.wait_procs(all_processes)  # a living one would still hold its run
                return said, False
            was_complete |= bool(re.match(r"\S+: ok in ", line))
    return said, True


@pytest.mark.slow
def test_a_dry_run_killed_after_each_row_completes_every_row(tmp_path: Path) -> None:
    """Packages that a machine with a GPU may lack are hidden."""
    pytest.importorskip("triton", reason="triton is not installed")
    packages, out = tmp_path / "packages", tmp_path / "out"
    packages.mkdir()
    (packages / "sitecustomize.py").write_text(
        "import importlib.machinery as m\nfind = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = classmethod(lambda cls, name, *more: None "
        f"if name.split('.')[0] in {UNUSED} else find(name, *more))\n"
    )
    before: dict[Path, str] = {}
    for _ in ROWS:
        said, has_ended = visit(out, packages)
        lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
        assert {line["status"] for line in lines} == {"ok"}, said
        hashes = {path: digest for line in lines for path, digest in digests(out / line["row"])}
        assert before.items() <= hashes.items(), "a later visit changed files"
        before = hashes
    assert has_ended and "Required rows not complete: none" in said and "Bugs: none" in said
    assert [line["row"] for line in lines] == [expected.name for expected in ROWS]
    for expected in map(small, ROWS):
        row.check_figures(expected, out / expected.name)
    assert {"verify.eagle2", "draft.eagle3"} < {*goals.figures(out / "phases-vicuna-13b")}
    assert {"step.eagle2", "num_late"} < {*goals.figures(out / "record-vicuna-13b")}
    title = read_run(out / "experts-half-of-mixtral").header.model.marked_label
    assert title.startswith("small-mixtral: mixtral (stand-in")
    pack(out, tmp_path / "packed")
    with tarfile.open(pieces.join(tmp_path / "packed", tmp_path)) as tar:
        brought = {*tar.getnames()}
    files = {path.relative_to(tmp_path) for path in out.rglob("*") if path.is_file()}
    assert {str(path) for path in files if KERNELS not in path.parts} <= brought


def digests(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files of a folder and their hashes."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, hashlib.sha256(path.read_bytes()).hexdigest()
