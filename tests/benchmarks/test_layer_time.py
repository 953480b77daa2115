"""benchmarks/layer_time.py: a table, a line of JSON for each measurement, and failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from msgspec import structs

from benchmarks import layer_time
from specbench.engine.layers.ops import Ops
from specbench.models.cards import find_model
from specbench.types import Shape

SHAPE = Shape(3, 128, 320, 4, 2, 2304, 2048)
OPERATIONS = ["q, k, v", "rope, cache", "attention", "output", "gate, up", "down", "layer"]


class Broken(Ops):
    def gated(self, *given: object, **more: object) -> torch.Tensor:
        raise RuntimeError("no C++ compiler\nlook elsewhere")


def test_each_operation_is_a_line_of_json_and_a_failure_has_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = structs.replace(find_model("tiny"), shape=SHAPE)
    monkeypatch.setattr(layer_time, "find_model", lambda name: card)
    monkeypatch.setattr(layer_time, "LEAST_BYTES", 2**16)
    monkeypatch.setattr(layer_time, "cache_bytes", lambda device: 0)
    monkeypatch.setattr(layer_time, "bandwidth", lambda device: 1e9)
    monkeypatch.setattr(layer_time, "_ways", lambda *where: {"torch": Ops(), "broken": Broken()})
    out = tmp_path / "layers.jsonl"
    options = ("--device", "cpu", "--dtype", "float32", "--rows", "3", "--cached", "9")
    assert layer_time.main([*options, "--out", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["operation"] for line in lines[::2]] == OPERATIONS
    assert all(line["us"] > 0 and line["reason"] is None for line in lines[::2])
    failed = [line for line in lines if line["us"] is None]
    assert [(line["operation"], line["way"]) for line in failed] == [
        ("gate, up", "broken"), ("layer", "broken"),
    ]  # fmt: skip
    assert {line["reason"] for line in failed} == {"no C++ compiler"}
    layer_bytes = 4 * 128 * (128 + 2 * 64 + 128 + 3 * 320)
    assert lines[-2]["weight_bytes"] == layer_bytes
    assert lines[-2]["share"] == pytest.approx(layer_bytes / lines[-2]["us"] / 1e3, rel=0.01)
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 + len(OPERATIONS) and said.out.count("fails") == 2
    assert "layer of 3 rows by broken fails: no C++ compiler" in said.err
