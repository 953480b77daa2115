"""A run reports how steps were executed, also if that changed during the run."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from transformers import AutoConfig

from specbench.engine.graphs import recorder
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.kernels import pick_ops
from specbench.engine.layers.ops import TORCH
from specbench.log.backend import ExecutionHeader
from specbench.log.store import read_run
from specbench.measure.local import engine_setup
from specbench.measure.local.device import Mode
from tests.cli.conftest import Specbench
from tests.support.architectures import config_of, random_of
from tests.support.models import save
from tests.support.recorders import rerun

SMALL = ("--template", "none", "--max-new-tokens", "12", "--offline", "--method", "pld")


class Recorder:
    """A recorder on a CPU, until it is told to fail."""

    is_broken = False

    def __init__(self, device: object) -> None:
        pass

    def __call__(self, *given: Any) -> Any:
        if Recorder.is_broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        return rerun(*given)


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in graph mode, on a CPU."""
    monkeypatch.setattr(engine_setup, "pick_mode", lambda *given: Mode("graph"))
    monkeypatch.setattr(recorder, "CudaRecorder", Recorder)
    monkeypatch.setattr(Recorder, "is_broken", False)
    monkeypatch.setattr(pick_ops, "pick_ops", lambda *given: TORCH)


def break_after_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop all recordings after the warm-up, and fail from then on."""
    close = Graphs.close

    def closed(self: Graphs) -> None:
        close(self)
        self.discard_graphs()
        monkeypatch.setattr(Recorder, "is_broken", True)

    monkeypatch.setattr(Graphs, "close", closed)


def test_a_recording_that_fails_after_the_warm_up_is_reported(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    call = ("run", "--model", model, "--prompts", prompt_file, *SMALL, "--output", out, "--full")
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_after_warm_up(monkeypatch)
        assert specbench(*call).code == 0
    run = read_run(out)
    assert {record.status for record in run.records} == {"ok"}
    assert "recorded" not in " ".join(run.header.warnings)
    why = "operation not permitted when stream is capturing, after the warm-up"
    for label in ("vanilla", "pld"):
        mode = run.header.execution[label]
        assert mode.mode == "eager" and mode.reason and mode.reason.endswith(why)
    assert f"{why})" in (out / "report" / "table.md").read_text()
    lines = (out / "samples.jsonl").read_text().splitlines(keepends=True)
    (out / "samples.jsonl").write_text("".join(lines[:2]))
    assert specbench(*call, "--resume").code == 0  # where all is recorded
    assert read_run(out).header.execution == run.header.execution


def test_a_model_that_is_not_fused_says_that_its_own_steps_were_recorded(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    own = copytree(model, tmp_path / "own")
    vocab_size = AutoConfig.from_pretrained(model).vocab_size
    save(random_of(config_of("glm4", vocab_size=vocab_size)), own)
    out = tmp_path / "out"
    call = ("run", "--model", own, "--prompts", prompt_file, *SMALL, "--output", out, "--full")
    said = specbench(*call)
    assert said.code == 0, said.err
    header = read_run(out).header
    mode = ExecutionHeader("graph", None)
    assert header.execution == {"vanilla": mode, "pld": mode}
    assert header.kernels is not None and header.kernels.name == "transformers"
    text = (out / "report" / "table.md").read_text()
    assert "CUDA graphs" in text
    assert "layers by transformers (Glm4ForCausalLM is run by transformers' own forward)" in text
