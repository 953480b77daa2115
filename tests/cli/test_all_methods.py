"""`--method all` runs every method that has a checkpoint for the model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from specbench.engine.load import load_target
from specbench.log.store import read_run
from specbench.measure.plan import with_defaults
from specbench.measure.spec import RunSpec
from specbench.registry import get, names
from tests.cli.conftest import Specbench
from tests.support.checkpoint import write_prompts
from tests.support.weights import WEIGHTS

LEFT_OUT = "medusa"


@pytest.fixture
def checkpoints(model: Path, tmp_path: Path) -> dict[str, str]:
    """Each method that needs weights, spelled with a random checkpoint or a datastore."""
    target = load_target(model, dtype=torch.float32, device=torch.device("cpu"))
    spellings = {}
    for name in names():
        if not (key := get(name).weights):
            continue
        path = WEIGHTS[key](target, tmp_path / f"for_{name}")
        if key in ("sps", "pard"):
            for file in model.glob("tokenizer*"):
                shutil.copy(file, path)
        spellings[name] = f"{name}:{'datastore' if key == 'rest' else 'weights'}={path}"
    return spellings


def test_all_names_the_methods_without_a_checkpoint(
    specbench: Specbench, model: Path, checkpoints: dict[str, str], tmp_path: Path
) -> None:
    del checkpoints[LEFT_OUT]
    prompts = write_prompts(tmp_path / "mine.jsonl", ["ab ab ab ab"])
    chosen = ",".join(["all", *checkpoints.values()])
    call = ("run", "--model", model, "--method", chosen, "--prompts", prompts, "--template", "none",
            "--max-new-tokens", 8)  # fmt: skip
    assert f"No checkpoint: {LEFT_OUT}\n" in specbench(*call, "--dry-run").out
    said = specbench(*call, code=0)
    assert f"{LEFT_OUT}: no checkpoint for" in said.err
    assert "no checkpoint" in said.out.lower()  # a row of the table
    (path,) = Path("results/runs").iterdir()
    run = read_run(path)
    ran = sorted(record.key.method.partition(":")[0] for record in run.records)
    assert ran == sorted({*names()} - {LEFT_OUT})  # each once, though it is named twice
    assert run.header.no_checkpoint == (LEFT_OUT,)
    assert {tuple(record.token_ids) for record in run.records} == {tuple(run.records[0].token_ids)}


def test_all_methods_of_a_serving_engine_are_those_it_runs_by_default() -> None:
    spec = RunSpec(model="tiny", methods=("all",), backend="server", serving_engine="vllm")
    assert with_defaults(spec).methods == ()
