"""Steps of models that run transformers' own forward, replayed as graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from specbench.engine.decode import decode
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.layers.models import is_known
from specbench.engine.load import load_target
from specbench.engine.target import Needs, Target
from specbench.engine.tree import DraftTree
from specbench.types import Request
from tests.engine.test_target import Oracle
from tests.support.architectures import FULL, LIMITED, config_of, random_of
from tests.support.fake_cuda import CheckedGraphs
from tests.support.models import save
from tests.support.recorders import rerun
from tests.support.tracing import TraceRecorder

PROMPT = (1, 7, 8, 9, 10, 11)
UNFUSED = [
    name
    for name in (*FULL, *LIMITED)
    if name in CONFIG_MAPPING and not is_known(random_of(config_of(name)))
]
EAGER = {"falcon", "phimoe"}
"""Model types whose code copies from the host, which a capture on a GPU refuses."""


@pytest.mark.parametrize("name", UNFUSED)
def test_the_step_of_a_model_can_be_captured(name: str) -> None:
    checked = CheckedGraphs(rerun)
    target = Target(random_of(config_of(name)).to(torch.bfloat16), checked)
    decode(target, Oracle([]), Request(PROMPT, 4))
    assert checked.num_checked >= 1
    assert bool(checked.refused) == (name in EAGER), checked.refused


@torch.inference_mode()
def test_replayed_steps_give_what_a_drafter_reads() -> None:
    model, needs = random_of(config_of("glm4")), Needs(hidden=True, layer_inputs=(1, 2))
    plain, replaying = Target(model), Target(model, Graphs(TraceRecorder()))
    found = []
    for target in (plain, replaying):
        with target.capture(needs):
            for length in (3, 6):
                target.prefill(PROMPT[:length])
                out = target.forward(DraftTree.chain(torch.tensor([5, 9])))
        assert out.hidden is not None
        found.append((out.logits, out.hidden, out.layer_inputs[1], out.layer_inputs[2]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_a_step_that_reads_the_number_of_tokens_runs_eagerly_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(target: Target, *given: Any, **named: Any) -> Any:
        out = forward(target, *given, **named)
        return replace(out, logits=out.logits * target.cache.length)

    forward = Target._run_model
    monkeypatch.setattr(Target, "_run_model", scaled)
    folder = save(random_of(config_of("glm4")), tmp_path)
    target = load(folder)
    assert "logits in a graph differ from those of the same step by itself" in str(
        target.eager_reason
    )
    monkeypatch.undo()
    target = load(folder)
    assert target.eager_reason is None
    assert target.cache.length == 0


def test_a_step_that_cannot_be_captured_runs_eagerly_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Target._run_model

    def reads(target: Target, *given: Any, **named: Any) -> Any:
        out = forward(target, *given, **named)
        return replace(out, logits=out.logits * (1 + 0 * out.logits.max().item()))

    monkeypatch.setattr(Target, "_run_model", reads)
    target = load(save(random_of(config_of("glm4")), tmp_path))
    assert "_tree_step" in str(target.eager_reason)
    answer = list(decode(Target(target.model), Oracle([]), Request(PROMPT, 8)).token_ids)
    assert list(decode(target, Oracle(answer), Request(PROMPT, 8)).token_ids) == answer


def load(folder: Path) -> Target:
    return load_target(
        folder, dtype=torch.float32, device=torch.device("cpu"),
        execution=Graphs(TraceRecorder()),
    )  # fmt: skip
