"""A run reports how its steps were executed, even if that changed during the run."""

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
from specbench.log.store import read_run
from specbench.measure.local import engine_setup
from specbench.measure.local.device import Mode
from tests.cli.conftest import Specbench, cut
from tests.support.architectures import config_of, random_of
from tests.support.models import save
from tests.support.recorders import rerun
from tests.support.texts import assert_in


class Recorder:
    """A recorder that works on a CPU until `is_broken` is set."""

    is_broken = False

    def __init__(self, device: object) -> None:
        pass

    def __call__(self, *given: Any) -> Any:
        if Recorder.is_broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        return rerun(*given)


@pytest.fixture
def unfused(model: Path, tmp_path: Path) -> Path:
    """A model that runs transformers' own forward."""
    folder = copytree(model, tmp_path / "own")
    vocab_size = AutoConfig.from_pretrained(model).vocab_size
    return save(random_of(config_of("glm4", vocab_size=vocab_size)), folder)


def test_a_recording_that_fails_after_the_warm_up_is_reported(
    specbench: Specbench, unfused: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is in graph mode on a CPU.

    All recordings are dropped after the warm-up, and every later recording fails.
    """
    close = Graphs.close

    def closed(self: Graphs) -> None:
        close(self)
        self.discard_graphs()
        monkeypatch.setattr(Recorder, "is_broken", True)

    monkeypatch.setattr(engine_setup, "pick_mode", lambda *given: Mode("graph"))
    monkeypatch.setattr(recorder, "CudaRecorder", Recorder)
    monkeypatch.setattr(pick_ops, "pick_ops", lambda *given: TORCH)
    call = ("run", "--model", unfused, "--prompts", prompt_file, "--template", "none", "--method",
            "pld", "--max-new-tokens", 12, "--output", "out", "--full")  # fmt: skip
    with monkeypatch.context() as during:
        during.setattr(Graphs, "close", closed)
        assert specbench(*call).code == 0
    run = read_run(Path("out"))
    assert {record.status for record in run.records} == {"ok"}
    assert "recorded" not in " ".join(run.header.warnings)
    assert run.header.kernels is not None and run.header.kernels.name == "transformers"
    why = "operation not permitted when stream is capturing, after the warm-up"
    for label in ("vanilla", "pld"):
        mode = run.header.execution[label]
        assert mode.mode == "eager" and mode.reason and mode.reason.endswith(why)
    assert_in(
        Path("out/report/table.md").read_text(),
        f"{why})",
        "layers by transformers (Glm4ForCausalLM is run by transformers' own forward)",
    )
    monkeypatch.setattr(Recorder, "is_broken", False)
    cut(Path("out"), 2)
    assert specbench(*call, "--resume").code == 0  # here no recording fails
    assert read_run(Path("out")).header.execution == run.header.execution


@pytest.mark.slow
def test_the_header_says_if_a_step_is_one_graph(
    specbench: Specbench, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_setup, "pick_mode", lambda *given: Mode("graph"))
    monkeypatch.setattr(recorder, "CudaRecorder", Recorder)
    monkeypatch.setattr(pick_ops, "pick_ops", lambda *given: TORCH)
    token_ids = []
    for option in (None, "--phases", "--trace", "--check-drafts"):
        call = ["run", "--prompts", prompt_file, "--method", "eagle2,pld", "--max-new-tokens", 12]
        given = [option] if option else []
        assert specbench(*call, *given, "--output", f"out{option}").code == 0
        run = read_run(Path(f"out{option}"))
        token_ids.append([record.token_ids for record in run.records])
        is_joined = {label: entry.is_joined for label, entry in run.header.execution.items()}
        assert is_joined == {"vanilla": not option, "eagle2": not option, "pld": not option}
        assert {entry.mode for entry in run.header.execution.values()} == {"graph"}
    assert all(of_run == token_ids[0] for of_run in token_ids)
