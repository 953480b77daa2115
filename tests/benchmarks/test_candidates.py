"""The candidate's row in the suite has figures for every implementation, and reports faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.gpu.suite import main

pytest.importorskip("triton", reason="triton is not installed")
if torch.cuda.is_available():
    pytest.skip("on a GPU, the suite runs the row", allow_module_level=True)

from benchmarks.gpu.candidates import measure
from benchmarks.gpu.candidates.products import LAUNCHES, Launch, StreamOps

SMALL = Launch(64, 64, 4, 4)


def measured(out: Path) -> list[dict[str, Any]]:
    """The lines of the candidate's command for a model without a shape."""
    where = ("--device", "cpu", "--dtype", "float32", "--model", "tiny", "--out", str(out))
    assert measure.main([*where, "--rows", "17", "--cached", "16"]) == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda product: product * 1.001, "qkv is off by 1.0e-03"),
        (lambda product: product + 1e-6 * torch.rand_like(product), "qkv differs from run to run"),
    ],
)
def test_a_launch_with_wrong_products_is_not_timed(
    change: Callable[[Tensor], Tensor],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = StreamOps.stream
    monkeypatch.setattr(StreamOps, "stream", lambda *given: change(stream(*given)))
    monkeypatch.setattr(measure, "LAUNCHES", {32: (SMALL,)})
    monkeypatch.setattr(measure, "_measured", lambda work, device: (1e-3, None))
    lines = measured(tmp_path / "out.jsonl")
    assert [line["way"] for line in lines if "gain" in line] == ["cuBLAS", "torch.compile"]
    (faulty,) = [line for line in lines if line["way"] == SMALL.name]
    assert faulty["reason"] == reason


def test_the_row_runs_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    call = ["--device", "cpu", "--model", "tiny", "--only", "products", "--out", str(tmp_path)]
    assert main(call) == 0
    text = (tmp_path / "products-tiny" / "products.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    ways = ["cuBLAS", *(launch.name for launch in LAUNCHES[16]), "torch.compile"]
    assert [line["way"] for line in lines if "gain" in line] == ways
    operations = ["q, k, v", "output", "gate, up", "down", "layer"]
    assert [line["operation"] for line in lines if line["way"] == ways[1]] == operations
    assert all(line["us"] > 0 for line in lines)
