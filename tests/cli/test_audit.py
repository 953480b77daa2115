"""specbench audit, from a run to its results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench import run
from specbench.log.store import read_run
from tests.cli.conftest import Specbench
from tests.judge.making import rewrite
from tests.support.checkpoint import save_checkpoint, write_prompts
from tests.support.texts import assert_in


@pytest.fixture(scope="module")
def made_run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of PLD, greedy and sampled."""
    folder = tmp_path_factory.mktemp("made")
    prompts = write_prompts(folder / "mine.jsonl", ["ab ab ab ab"], ["one two", "and three"])
    run(
        str(model), "pld", output=folder / "run", prompts=prompts, template="none",
        max_new_tokens=12, dtype="float32", device="cpu", temperatures=(0, 1),
    )  # fmt: skip
    return folder / "run"


@pytest.fixture
def folder(made_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_run, tmp_path / "out")


@pytest.mark.slow
def test_a_lossless_run_passes(specbench: Specbench, folder: Path) -> None:
    said = specbench("audit", folder, "--tokens", 60, "--device", "cpu", code=0)
    assert_in(said.out, "identical", "no difference", "smallest TV")
    audit = read_run(folder).audit
    assert audit is not None
    assert {(result.method, result.level, result.status) for result in audit.results} >= {
        ("pld", 0.0, "identical"), ("pld", 1.0, "no difference"), ("pld", 2.0, "no difference"),
    }  # fmt: skip
    assert "no bug found" in specbench("report", folder, "--full").out


def spoil(lines: list[dict[str, Any]]) -> None:
    """Change a token in the middle of each of PLD's answers."""
    for line in lines:
        if line["method"] == "pld":
            line["token_ids"][3] = (line["token_ids"][3] + 1) % 200


@pytest.mark.slow
def test_spoiled_answers_are_a_bug_and_a_missing_or_changed_model_is_refused(
    specbench: Specbench,
    folder: Path,
    model: Path,
    tmp_path: Path,
) -> None:
    rewrite(folder, spoil)
    before = specbench("report", folder, "--full").out
    assert "0 of 3 completions" in " ".join(before.split()) and "specbench audit" in before
    said = specbench("audit", folder, "--tokens", 40, code=1)
    assert "token 3" in said.out and "bug" in said.out
    assert "failed the audit" in specbench("report", folder, "--full").out
    again = specbench("audit", folder, "--dtype", "float32", "--tokens", 0, code=1)
    assert "again in" in again.out and "float32" in again.out
    other_model = tmp_path / "own"
    header = folder / "run.json"
    header.write_text(header.read_text().replace(str(model), str(other_model)))
    assert "own" in specbench("audit", folder, "--offline", code=2).err
    save_checkpoint(other_model, seed=5)
    assert "differ from the run's" in specbench("audit", folder, code=2).err
