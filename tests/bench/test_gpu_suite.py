"""The suite for a GPU, on a CPU and a small shape: every step of it but the graphs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import layer_time
from specbench.bench.models import find_model
from specbench.types import Shape

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 13, "head_dim": 64,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 2304,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_suite_measures_a_shape_and_leaves_its_figures(tmp_path: Path) -> None:
    shape, out = tmp_path / "shape", tmp_path / "out"
    shape.mkdir()
    (shape / "config.json").write_text(json.dumps(SHAPE))
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--dtype", "float32",
            "--model", str(shape), "--limit", "1", "--max-new-tokens", "4", "--output", str(out),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "suite.json").read_text())
    assert found["failed"] == [] and found["seconds"] > 0
    assert "specbench doctor" in (out / "log.txt").read_text()
    assert "CUDA" in found["graphs"]["skipped"]
    figures = found["models"][str(shape)]
    assert figures["methods"]["vanilla"]["speedup"] == 1
    assert figures["methods"]["eagle2"]["mat"] > 1
    assert {mode["mode"] for mode in figures["execution"].values()} == {"eager"}
    assert (out / "report" / "report.html").exists()


def test_what_would_begin_too_late_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--seconds", "0"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "left out, 0 s are over" in done.stderr
    found = json.loads((tmp_path / "suite.json").read_text())
    assert found["models"]["vicuna-13b"] == {"skipped": "the run failed"}


def test_the_operations_of_a_layer_are_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = replace(find_model("tiny"), shape=Shape(3, 256, 640, 4, 4, 2304, 2048))
    monkeypatch.setattr(layer_time, "find_model", lambda name: card)
    monkeypatch.setattr(layer_time, "LEAST_BYTES", 2**20)
    monkeypatch.setattr(layer_time, "cache_bytes", lambda device: 0)
    monkeypatch.setattr(layer_time, "bandwidth", lambda device: 1e9)
    options = ["--device", "cpu", "--dtype", "float32"]
    assert layer_time.main([*options, "--rows", "1", "3", "--cached", "9"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in lines] == ["1"] * 7 + ["3"] * 7
    assert all(float(line[line.index("us") - 1]) > 0 for line in lines)
    assert float(lines[6][2]) == pytest.approx(4e-6 * 256 * (4 * 256 + 3 * 640), abs=0.06)
