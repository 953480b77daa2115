"""The GPU suite on a CPU, without the parts that need a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from msgspec import structs

from benchmarks import layer_time
from benchmarks.gpu import contexts, readers, suite
from benchmarks.gpu.ledger import Ledger
from benchmarks.gpu.lines import read_figures
from benchmarks.gpu.parts import Settings
from specbench.engine.target import Target
from specbench.log.store import read_run
from specbench.measure.base import Plan
from specbench.measure.local.engine_load import load_model
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.plan import make_plan
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model
from specbench.types import Shape
from tests.zoo.stand_in_shapes import write_config

ROOT = Path(__file__).parents[2]
SMALL = ("--device", "cpu", "--dtype", "float32", "--limit", "1", "--max-new-tokens", "3")
SHAPE = {
    "num_hidden_layers": 13, "hidden_size": 256, "intermediate_size": 640, "head_dim": 64,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 2304,
}  # fmt: skip
"""The smallest that holds tiny, about."""
NOT_THERE = ("datasets", "pooch", "pynvml", "matplotlib")
"""Packages that the suite does without: a machine with a GPU may lack them."""


def measure_on_cpu(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an environment without some packages."""
    lacking = out.parent / "lacking"
    lacking.mkdir(exist_ok=True)
    lines = "\n".join(f"sys.modules[{name!r}] = None" for name in NOT_THERE)
    (lacking / "sitecustomize.py").write_text(f"import sys\n{lines}\n")
    one_thread = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    env = {**os.environ, **one_thread, "PYTHONPATH": f"{lacking}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "benchmarks.gpu", *SMALL, "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_the_plan_runs_without_a_gpu_and_without_some_packages(tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    options = ("--plan", "--model", "tiny", "--contexts", "24", "--work", str(work))
    first = measure_on_cpu(out, *options, "--only", "contexts", "--only", "tests")
    assert first.returncode == 0, first.stdout + first.stderr
    done = measure_on_cpu(
        out,
        *options,
        "--only",
        "tests",
        "--only",
        "suite",
        "--only",
        "layers",
        "--only",
        "contexts",
    )
    assert "tests (about" not in done.stdout  # it is finished
    assert done.returncode == 1  # layers-tiny cannot be run
    assert "layers-tiny: skipped, the shape of tiny is not known" in done.stdout
    settings = Settings("cpu", "float32", ("tiny",), 1, 3).describe()
    ended = Ledger(out / "parts.jsonl", settings).ended()
    assert set(ended) == {"contexts-tiny", "tests", "suite-tiny"}
    assert {(one.status, one.reason) for one in ended.values()} == {("ok", None)}
    assert ended["tests"].figures["skipped"] > 10 and not ended["tests"].figures["names_failed"]
    figures = ended["suite-tiny"].figures
    assert figures["methods"]["vanilla"]["speedup"] == 1
    assert figures["methods"]["eagle2"]["mat"] > 1
    assert {mode["mode"] for mode in figures["execution"].values()} == {"eager"}
    assert {one["verdict"] for one in figures["eager_tokens"].values()} == {"identical"}
    assert figures["eager_tokens"]["sps"]["of"] == 1
    assert figures["num_late"] == figures["num_wrong"] == 0
    assert set(figures["host"]) == set(figures["methods"])
    assert {path.name for path in out.iterdir()} == {"parts.jsonl", "table.txt", "runs.tar.gz"}
    with tarfile.open(out / "runs.tar.gz") as archive:
        assert "suite-tiny/all/samples.jsonl" in archive.getnames()
    table = (out / "table.txt").read_text()
    assert "suite-tiny" in table and "not measured" in table and table in done.stdout


@pytest.mark.slow
def test_the_suite_of_a_stand_in_shares_what_it_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = write_config(tmp_path / "shape", **SHAPE)
    setups: list[EngineSetup] = []
    specs: list[RunSpec] = []

    def load(setup: EngineSetup) -> Target:
        setups.append(setup)
        return load_model(setup)

    def planned(spec: RunSpec, *, is_offline: bool) -> Plan:
        specs.append(spec)
        return make_plan(spec, is_offline=is_offline)

    monkeypatch.setattr(suite, "load_model", load)
    monkeypatch.setattr(suite, "make_plan", planned)
    monkeypatch.setattr(suite, "TASK", "humaneval")
    out = tmp_path / "out"
    assert suite.main([*SMALL, "--model", str(shape), "--folder", str(out)]) == 0
    assert len(setups) == 1
    assert len(specs) == 1  # which asks for memory that a loaded model has taken
    assert {record.key.task for record in read_run(out / "phases").records} == {"humaneval"}
    figures = read_figures(out)
    assert figures["build_s"] > 0 and figures["capture_s"] > 0 and figures["bandwidth_gb_s"] > 0
    assert {name: read_run(out / name).header.status for name in ("all", "phases", "eager")} == {
        "all": "complete", "phases": "complete", "eager": "complete",
    }  # fmt: skip
    assert read_run(out / "all").header.model.is_stand_in
    # A kill in the first run would have left its header and its samples.
    (out / "figures.jsonl").unlink()
    again = readers.read_suite(out)
    assert again["methods"] == figures["methods"] and again["num_late"] == 0
    assert not (out / "report").exists()


@pytest.mark.slow
def test_sampling_is_measured_in_one_run(tmp_path: Path) -> None:
    given = (*SMALL, "--model", "tiny", "--temperature", "1", "--folder", str(tmp_path))
    assert suite.main(given) == 0
    assert read_run(tmp_path / "all").header.spec.values.temperatures == (1.0,)
    assert not (tmp_path / "phases").exists()
    assert set(read_figures(tmp_path)["methods"]) > {"vanilla", "sps", "eagle3"}


@pytest.mark.slow
def test_a_stand_in_takes_contexts_that_tiny_does_not(tmp_path: Path) -> None:
    shape = write_config(tmp_path / "shape", **SHAPE)
    out = tmp_path / "out"
    options = ("--device", "cpu", "--dtype", "float32", "--contexts", "8", "2300")
    assert contexts.main([*options, "--model", str(shape), "--folder", str(out)]) == 0
    found = read_figures(out)
    assert set(found["context_2300"]["rows"]) == {"1", "6", "26", "60"}
    assert found["context_2300"]["cache_share"] > 10 * found["context_8"]["cache_share"]
    assert all(row["step_ms"] > 0 < row["share"] for row in found["context_8"]["rows"].values())


def test_the_operations_of_a_layer_are_timed_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = structs.replace(find_model("tiny"), shape=Shape(3, 256, 640, 4, 4, 2304, 2048))
    monkeypatch.setattr(layer_time, "find_model", lambda name: card)
    monkeypatch.setattr(layer_time, "LEAST_BYTES", 2**20)
    monkeypatch.setattr(layer_time, "cache_bytes", lambda device: 0)
    monkeypatch.setattr(layer_time, "bandwidth", lambda device: 1e9)
    options = ["--device", "cpu", "--dtype", "float32"]
    assert layer_time.main([*options, "--rows", "1", "3", "--cached", "9"]) == 0
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines()[2:]]
    assert [line[0] for line in lines] == ["1"] * 7 + ["3"] * 7
    assert all(float(line[line.index("us") - 1]) > 0 for line in lines)
    assert float(lines[6][2]) == pytest.approx(4e-6 * 256 * (4 * 256 + 3 * 640), abs=0.06)
    (tmp_path / "log.txt").write_text(f"Autotuning …\n{said}")
    found = readers.read_layers(tmp_path)
    assert found.pop("ways") == ["torch"]
    assert len(found) == 7
    for operation, by_rows in found.items():
        assert set(by_rows) == {"1", "3"}, operation
    (one,) = found["layer"]["3"]
    assert one["us"] > 0 and one["share"] >= 0
    assert set(found["attention"]["1"][0]) == {"us"}


def test_several_ways_to_compute_a_layer_are_read_in_their_order(tmp_path: Path) -> None:
    row = f"{10:>4}  {'rope, cache':<12}{'':7}" + "".join(
        f"{us:17.1f} us       ".rjust(30) for us in (12.5, 13.0, 40.2)
    )
    heads = f"{'rows':>4}  {'operation':<12}{'MB':>7}" + "".join(
        f"{name:>30}" for name in ("triton, early", "triton", "torch")
    )
    (tmp_path / "log.txt").write_text(f"{heads}\n{row}\n")
    found = readers.read_layers(tmp_path)
    assert found["ways"] == ["triton, early", "triton", "torch"]
    assert found["rope, cache"]["10"] == [{"us": 12.5}, {"us": 13.0}, {"us": 40.2}]


def test_tests_are_counted_even_if_they_were_killed_midway(tmp_path: Path) -> None:
    name = "tests/engine/test_graphs.py::test_cuda_graphs_give[a b-eagle]"
    (tmp_path / "log.txt").write_text(
        f"collected 4 items\n{name} PASSED      [ 25%]\n{name}2 FAILED   [ 50%]\n"
        "tests/x.py::y SKIPPED (no GPU) [ 75%]\ntests/x.py::z "
    )
    assert readers.read_tests(tmp_path) == {
        "passed": 1, "failed": 1, "skipped": 1, "names_failed": [f"{name}2"],
    }  # fmt: skip


def test_the_output_of_doctor_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("note    device: cpu; no GPU\nPROBLEM tree: off by 2\n")
    assert readers.read_doctor(tmp_path) == {
        "device": {"verdict": "note", "text": "cpu; no GPU"},
        "tree": {"verdict": "PROBLEM", "text": "off by 2"},
    }
