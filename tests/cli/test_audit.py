"""specbench audit, from a run to its results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from specbench.log.store import read_run
from tests.cli.conftest import Specbench
from tests.support.checkpoint import save_checkpoint

SMALL = ("--template", "none", "--max-new-tokens", "12", "--offline", "--dtype", "float32")


def run(specbench: Specbench, model: Path, prompts: Path, *more: object) -> Path:
    call = ("run", "--model", model, "--method", "pld", "--prompts", prompts, *SMALL, *more)
    assert specbench(*call, "--output", "out", "--quiet").code == 0
    return Path("out")


def spoil(folder: Path) -> None:
    """Change a token in the middle of every answer of pld."""
    path = folder / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["method"] == "pld":
            line["token_ids"][3] = (line["token_ids"][3] + 1) % 200
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_lossless_run_passes(specbench: Specbench, model: Path, prompt_file: Path) -> None:
    said = specbench("audit", run(specbench, model, prompt_file, "--temperature", "0,1"),
                     "--tokens", 60, "--device", "cpu")  # fmt: skip
    assert said.code == 0, said.err
    assert "identical" in said.out and "no difference" in said.out
    assert "smallest TV" in said.out
    audit = read_run(Path("out")).audit
    assert audit is not None
    assert {(one.method, one.level, one.status) for one in audit.results} >= {
        ("pld", 0.0, "identical"), ("pld", 1.0, "no difference"), ("pld", 2.0, "no difference"),
    }  # fmt: skip
    assert "no bug found" in specbench("report", "out", "--full").out


def test_a_long_run_tells_its_time_after_the_warm_up(
    specbench: Specbench, model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.measure.local.engine.LONG_S", 0)
    call = ("run", "--model", model, "--method", "pld", "--prompts", prompt_file, *SMALL)
    said = specbench(*call, "--output", "long")
    assert said.code == 0
    before, _, after = said.err.partition("by the warm-up.")
    assert "About " in before and "with 12 tokens an answer" in before
    assert "[1/" in after and "[1/" not in before


def test_spoiled_answers_are_a_bug(specbench: Specbench, model: Path, prompt_file: Path) -> None:
    folder = run(specbench, model, prompt_file)
    spoil(folder)
    before = specbench("report", folder, "--full").out
    assert "0 of 3 completions" in " ".join(before.split()) and "specbench audit" in before
    said = specbench("audit", folder, "--tokens", 40)
    assert said.code == 1
    assert "token 3" in said.out and "bug" in said.out
    assert "failed the audit" in specbench("report", folder, "--full").out
    again = specbench("audit", folder, "--dtype", "float32", "--tokens", 0)
    assert again.code == 1
    assert "again in" in again.out and "float32" in again.out


def test_a_model_that_is_gone_or_another_is_refused(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(model, tmp_path / "own")
    folder = run(specbench, own, prompt_file)
    spoil(folder)
    shutil.rmtree(own)
    gone = specbench("audit", folder, "--offline")
    assert (gone.code, "own" in gone.err) == (2, True)
    save_checkpoint(own, seed=5)
    other = specbench("audit", folder)
    assert (other.code, "not the run's" in other.err) == (2, True)
