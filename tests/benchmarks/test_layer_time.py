"""benchmarks/layer_time.py: alternative implementations of a layer, and their failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from benchmarks import layer_alternatives, layer_time
from benchmarks.layer_alternatives import compiled_layers, flex_layers, plain_layer
from benchmarks.measured import Meter
from specbench.engine.layers.operands import CacheSlots
from specbench.engine.layers.ops import TORCH
from specbench.models.cards import find_model
from specbench.types import Shape

CPU = torch.device("cpu")
SHAPE = Shape(3, 128, 320, 4, 2, 2304, 2048)
CACHED = 9


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    card = structs.replace(find_model("tiny"), shape=SHAPE)
    monkeypatch.setattr(layer_time, "find_model", lambda name: card)
    monkeypatch.setattr(layer_time, "LEAST_BYTES", 2**16)
    monkeypatch.setattr(layer_time, "cache_bytes", lambda device: 0)
    monkeypatch.setattr(layer_time, "bandwidth", lambda device: 1e9)


def rows_and_layers(num_rows: int) -> tuple[layer_alternatives.Rows, list[layer_time.Layer]]:
    torch.manual_seed(0)
    layers = layer_time._layers(SHAPE, CACHED, CPU, torch.float32)
    rows = layer_time._rows(SHAPE, layers[0].qkv, num_rows, CACHED)
    slots = CacheSlots(rows.slots.rows, torch.randn_like(rows.slots.cos_sin))
    return replace(rows, x=torch.randn_like(rows.x), slots=slots), layers


def run(*options: str) -> int:
    where = ("--device", "cpu", "--dtype", "float32", "--rows", "3", "--cached", str(CACHED))
    return layer_time.main([*where, *options])


@torch.inference_mode()
def test_the_compiled_layer_computes_the_same_as_the_operations() -> None:
    rows, (layer, *_) = rows_and_layers(5)
    expected = rows.x.clone()
    layer_time._whole(rows, expected, TORCH, layer)
    after = layer.cached.all.clone()
    layer.cached.all[CACHED:].zero_()
    found = plain_layer(
        rows.x, layer.qkv, layer.o, layer.gate_up, layer.down, rows.norm.weight, layer.cached.all,
        rows.slots.rows, rows.slots.cos_sin, rows.mask, rows.heads, rows.norm.eps,
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.cached.all[: CACHED + 5], after[: CACHED + 5])


@pytest.mark.slow
@torch.inference_mode()
def test_compiled_layers_and_flex_attention_compute_what_the_operations_do() -> None:
    rows, layers = rows_and_layers(5)
    expected = rows.x.clone()
    for layer in layers:
        layer_time._whole(rows, expected, TORCH, layer)
    found = compiled_layers(rows, layers, "default")()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    queries = torch.ones(5, rows.heads.query_width)
    attended = TORCH.attend(queries, layers[-1].cached, rows.tree_mask, rows.heads)
    torch.testing.assert_close(flex_layers(rows, layers)(), attended)


def test_alternatives_are_measured_after_the_table_and_each_is_a_line_of_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)  # takes long
    out = tmp_path / "layers.json"
    assert run("--alternatives", "--out", str(out)) == 0
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["operation"] for line in lines] == [
        "q, k, v", "rope, cache", "attention", "output", "gate, up", "down", "layer",
        "torch.compile", "flex_attention", "flex_attention's mask",
    ]  # fmt: skip
    assert all(line["us"] > 0 and line["reason"] is None for line in lines)
    assert lines[7]["weight_bytes"] == lines[6]["weight_bytes"] > 0
    printed = capsys.readouterr().out.splitlines()[2:]
    assert len(printed) == len(lines) and "torch.compile" in printed[7]


def test_a_failed_alternative_has_its_reason_and_the_rest_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> Callable[[], object]:
        raise RuntimeError("no C++ compiler\nlook elsewhere")

    monkeypatch.setattr(layer_alternatives, "compiled_layers", broken)
    monkeypatch.setattr(layer_alternatives, "flex_layers", lambda *args: lambda: None)
    out = tmp_path / "layers.json"
    assert run("--alternatives", "--out", str(out)) == 0
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    failed = [line for line in lines if line["us"] is None]
    assert [(line["operation"], line["reason"]) for line in failed] == [
        ("torch.compile", "no C++ compiler")
    ]
    assert lines.index(failed[0]) == 7 and len(lines) == 10
    said = capsys.readouterr()
    assert "torch.compile of 3 rows by torch.compile fails: no C++ compiler" in said.err
    assert "fails" in said.out


def test_a_measurement_is_in_the_file_before_the_next_one_is_made(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    with path.open("w", encoding="utf-8") as out:
        meter = Meter(lambda work: 2.0, 1e6, out)
        done = meter.measure(3, "down", "torch", lambda: print, num_bytes=1000, num_layers=4)
        assert json.loads(path.read_text(encoding="utf-8"))["us"] == 500_000
    assert done.share == 1000 / 0.5 / 1e6
