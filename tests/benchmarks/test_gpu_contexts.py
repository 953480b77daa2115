"""Steps after long contexts: their values are compared, or reported as meaningless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import Tensor

from benchmarks.gpu import contexts
from benchmarks.gpu.contexts import (
    ALLOWED_DIFFERENCES,
    ROWS,
    differences,
    drawn_ids,
    main,
    source_of,
)
from specbench.engine.execution import Execution
from specbench.engine.layers.operands import CacheRows
from specbench.engine.layers.ops import Ops
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.log.backend import RooflineHeader
from specbench.models.cards import find_model
from specbench.types import Shape
from tests.support.paths import ROOT

SHAPES = ROOT / "benchmarks/gpu/shapes"
TRAFFIC = RooflineHeader(1e9, 0, 10**6, 1, is_mixture_of_experts=True, unread_bytes=10**5)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "measure_traffic", lambda target: TRAFFIC)
    monkeypatch.setattr(contexts, "ROUNDS", 1)
    monkeypatch.setattr(contexts, "STEPS", 1)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


class SplitLeftOut(Ops):
    """A planted fault: a step does not see a part of the cache."""

    def attend(
        self, queries: Tensor, cached: CacheRows, tree_mask: Any, heads: Any, *more: Any
    ) -> Tensor:
        if tree_mask is not None:
            rows = cached.all.clone()
            rows[100:164] = 0
            cached = CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2)
        return super().attend(queries, cached, tree_mask, heads, *more)


class ExpertLeftOut(Ops):
    """A planted fault: a step misses one of the experts."""

    def experts(self, x: Tensor, experts: Any, ids: Tensor, shares: Tensor, act: Any) -> Tensor:
        if len(x) <= max(ROWS):
            shares = shares.masked_fill(ids == 3, 0)
        return super().experts(x, experts, ids, shares, act)


def target_of(model: str, ops: Ops, dtype: torch.dtype) -> Target:
    source = source_of(find_model(model), 1024)
    return load_target(source, dtype=dtype, device=torch.device("cpu"), execution=Execution(ops))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model", "fault"), [("tiny", SplitLeftOut), (str(SHAPES / "small-mixtral"), ExpertLeftOut)]
)
def test_a_step_has_the_logits_of_a_longer_prompt_and_a_fault_is_found(
    model: str, fault: type[Ops], dtype: torch.dtype
) -> None:
    target = target_of(model, Ops(), dtype)
    prompt_ids = drawn_ids(target, 300)
    right = differences(target, prompt_ids)
    assert tuple(right) == ROWS
    assert max(right.values()) < ALLOWED_DIFFERENCES[dtype]
    wrong = differences(target_of(model, fault(), dtype), prompt_ids)
    assert max(wrong.values()) > ALLOWED_DIFFERENCES[dtype]


def test_figures_are_replaced_and_wrong_values_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "contexts.jsonl"
    call = ["--model", "tiny", "--device", "cpu", "--dtype", "float32", "--out", str(out)]
    out.write_text('{"context": 8192, "of a call that was cut')
    assert main([*call, "--contexts", "64", "96"]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["context"] for line in lines] == [64, 96]
    assert {*lines[0]["values"]} == {str(num_rows) for num_rows in ROWS}
    assert lines[0]["rows"]["1"]["share"] > 0 and lines[0]["rows"]["60"]["share"] is None
    monkeypatch.setattr(contexts, "differences", lambda target, ids: {1: 0.0, 26: 0.31})
    assert main([*call, "--contexts", "64"]) == 1
    assert "After 64 tokens, the logits of a step over 26 rows differ" in capsys.readouterr().out


@pytest.mark.parametrize("architecture", ["qwen3", "gpt_oss"])
def test_a_model_that_cannot_hold_tiny_has_random_weights_and_times_only(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if architecture == "qwen3":
        shape = Shape(2, 64, 96, 4, 2, 300, 4096, architecture="qwen3", own_head_dim=16)
        card = structs.replace(find_model("qwen3-8b"), shape=shape)
    else:
        config = {
            **json.loads((SHAPES / "gpt-oss-20b/config.json").read_text()),
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "intermediate_size": 32,
            "vocab_size": 300,
        }
        (tmp_path / "config.json").write_text(json.dumps(config))
        card = find_model(str(tmp_path))
    monkeypatch.setattr(contexts, "find_model", lambda name: card)
    out = tmp_path / "out.jsonl"
    call = ["--device", "cpu", "--dtype", "float32", "--contexts", "64", "--out", str(out)]
    assert main(call) == 0
    figures = json.loads(out.read_text())
    assert figures["values"] == "random weights: times only"
    assert figures["rows"]["60"]["step_ms"] > 0
