"""Suites and runs on clusters of Ray: three nodes on this machine, with GPUs that are declared."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from specbench.cli import main
from specbench.log.run import Run
from specbench.log.store import read_header, read_run
from tests.ray.conftest import Nodes
from tests.support.paths import ROOT
from tests.zoo.stand_in_shapes import write_config

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]

RECIPE = """
title = "Tiny, and a stand-in"
[values]
methods = ["pld", "sps"]
tasks = ["gsm8k", "mt_bench"]
limit = 6
repeats = 2
max_new_tokens = 48
threads = 1

[[runs]]
models = ["tiny"]

[[runs]]
models = ["{shape}"]
weights = "stand-in"
limit = 2
"""
WAIT_S = 240.0


def outcomes(run: Run) -> dict[Any, Any]:
    assert run.header.status == "complete"
    counts = Counter(record.key for record in run.records)
    assert set(counts.values()) == {1}
    return {record.key: (record.token_ids, record.accept_lengths) for record in run.records}


def num_lines(folder: Path) -> int:
    path = folder / "samples.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(holds: Callable[[], bool], process: Popen[str]) -> None:
    """Wait until a condition holds, while a process runs."""
    began = time.monotonic()
    while not holds():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() - began < WAIT_S
        time.sleep(0.05)


def finished(nodes: Nodes, *words: object) -> tuple[int, str]:
    """The exit code and output of a command."""
    process = nodes.specbench(*words)
    said, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, said


def alone(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run the command in this process, without Ray."""
    monkeypatch.setattr(sys, "argv", ["specbench", *map(str, words), "--quiet"])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_suite_survives_the_loss_of_a_node(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add()
    nodes.add()
    recipe = tmp_path / "two.toml"
    recipe.write_text(RECIPE.format(shape=write_config(tmp_path / "shape")))
    with_ray, without_ray = tmp_path / "many", tmp_path / "one"
    first_run = with_ray / "01-tiny"
    suite = nodes.specbench("suite", recipe, "--output", with_ray, "--ray", nodes.address)
    wait_for(lambda: num_lines(first_run) >= 12, suite)
    assert num_lines(first_run) < (read_header(first_run).num_records or 0)
    nodes.kill(0)
    said, _ = suite.communicate(timeout=WAIT_S)
    assert suite.returncode == 0, said
    assert "is lost" in said and "Another worker repeats" in said
    assert alone(monkeypatch, "suite", recipe, "--output", without_ray) == 0
    for name in ("01-tiny", "02-shape"):
        ran, expected = read_run(with_ray / name), read_run(without_ray / name)
        assert outcomes(ran) == outcomes(expected)
        samples = {(r.key.request._replace(turn=0), r.worker) for r in ran.records}
        assert len(samples) == len({sample for sample, _ in samples}), (
            "each sample goes to one worker"
        )
    workers = read_run(first_run).header.workers
    assert {worker.gpu_ids for worker in workers.values()} == {("0",)}
    assert len({worker.node for worker in workers.values()}) == 2


def stopped(nodes: Nodes, folder: Path, number: int, *words: object) -> tuple[int, str]:
    """Signal a command after six more records. Returns its exit code and output."""
    least, process = num_lines(folder) + 6, nodes.specbench(*words)
    wait_for(lambda: num_lines(folder) >= least, process)
    process.send_signal(number)
    said, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, said


def test_a_run_can_be_resumed_after_its_driver_ends(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add()
    folder = tmp_path / "run"
    words = ("run", "--method", "pld,sps", "--dataset", "gsm8k", "--max-new-tokens", 32,
             "--output", folder, "--ray", nodes.address)  # fmt: skip
    code, said = stopped(nodes, folder, signal.SIGTERM, *words)
    assert code == 130 and "--resume" in said.splitlines()[-1], said
    assert read_header(folder).status == "interrupted"
    num_before = num_lines(folder)
    stopped(nodes, folder, signal.SIGKILL, *words, "--resume")
    code, said = finished(nodes, *words, "--resume")
    assert code == 0, said
    stored = read_run(folder)
    assert len(outcomes(stored)) == stored.header.num_records
    workers = [record.worker for record in stored.records]
    assert {*workers[:num_before]} == {"worker-1"}
    assert {*workers} == {"worker-1", "worker-2", "worker-3"} == {*stored.header.workers}


def refused(nodes: Nodes, folder: Path, *words: object) -> str:
    """The messages of a run that cannot begin."""
    call = ("run", "--limit", 1, "--output", folder, "--ray", nodes.address)
    code, said = finished(nodes, *call, *words)
    assert code, said
    return " ".join(said.split())


def test_a_missing_resource_in_a_cluster_gives_one_message(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add(env_vars={"HF_HOME": str(tmp_path / "empty")})
    far = ("--model", "vicuna-7b", "--prompts", "bundled", "--offline")
    said = refused(nodes, tmp_path / "run", *far)
    assert "Error: On 127.0.0.1: " in said and "vicuna-7b" in said
    error = "Error: On 127.0.0.1: --device cuda cannot be used"
    assert error in refused(nodes, tmp_path / "run", "--device", "cuda")
    assert not (tmp_path / "run").exists()


CARDS = """
import os
from specbench.measure.local import device
from specbench.models import memory

device.Device.capability = (9, 0)
device.count_gpus = lambda torch: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
memory.free_bytes = lambda name: 8 * 10**9 * len(memory.gpu_numbers(name))
"""
"""Declared GPUs that count as real, with 8 GB free. Loading anything onto them fails."""


def test_a_worker_has_as_many_gpus_as_the_device_names(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add(num_gpus=1, code=CARDS)
    nodes.add(num_gpus=2, code=CARDS)
    call = ("--model", "vicuna-7b", "--weights", "stand-in", "--method", "pld")
    # 13 GB: the setup is that of two GPUs, and loading it fails, since the machine has none.
    assert "2 such GPUs are needed" in refused(nodes, tmp_path / "run", *call)
    said = refused(nodes, tmp_path / "run", *call, "--device", "cuda:0-1")
    assert "Vicuna 7B (float16, cuda:0-1) on 1 worker" in said


def test_one_local_worker_gives_the_run_without_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("run", "--method", "pld", "--dataset", "gsm8k,alpaca", "--limit", 2, "--repeats", 1,
            "--max-new-tokens", 32, "--device", "cpu", "--threads", 1)  # fmt: skip
    assert alone(monkeypatch, *call, "--output", tmp_path / "here") == 0
    assert alone(monkeypatch, *call, "--output", tmp_path / "ray", "--ray", "local") == 0
    here, ray = read_run(tmp_path / "here"), read_run(tmp_path / "ray")
    assert outcomes(here) == outcomes(ray)
    assert [*ray.header.workers] == ["worker-1"]
    assert ray.header.environment.cpu == here.header.environment.cpu


CHILD = r"""
import os, random, socket, subprocess, sys
from contextlib import suppress
from specbench.measure.cluster.connection import connected

with connected("local") as ray:
    print(ray.get(ray.remote(lambda: os.nice(0)).remote()) - os.nice(0))
    address = ray.get_runtime_context().gcs_address
    guest = f"import ray; ray.init(address='{address}', log_to_driver=False)"
    others = {name: text for name, text in os.environ.items() if "RAY_AUTH" not in name}
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    for more in ({}, wrong):
        call = [sys.executable, "-c", guest]
        print(subprocess.run(call, env=others | more, capture_output=True).returncode)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Ray may log what strangers send
    host, _, port = address.partition(":")
    ports = [value for name, value in ray.nodes()[0].items() if name.endswith("Port") and value]
    for seed in range(200):
        draw = random.Random(seed)
        first = draw.choice((b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))  # as a client of Ray begins
        place = (host, draw.choice([*ports, int(port)]))
        with suppress(OSError), socket.create_connection(place, timeout=1) as stranger:
            stranger.sendall(first + draw.randbytes(draw.randrange(9999)))
    print(ray.get(ray.remote(lambda: 7).remote()))
"""


def test_local_workers_have_the_commands_niceness() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=200
    )
    assert done.stdout.split() == ["0", "1", "1", "7"], done.stderr
    assert not done.stderr, "Ray's log is hidden"


SLOW = """
import sys, time

if any("dashboard/agent.py" in word for word in sys.orig_argv):
    time.sleep(20)
"""


def test_a_machine_too_busy_for_ray_gives_one_message(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    done = subprocess.run(
        [sys.executable, "-m", "specbench", "run", "--limit", "1", "--ray", "local",
         "--output", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Error: Ray did not start on this machine: " in done.stderr
    assert "15 s" in done.stderr and not (tmp_path / "run").exists()


def test_a_run_survives_the_death_of_the_heads_raylet(nodes: Nodes, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("run", "--method", "pld", "--dataset", "gsm8k", "--max-new-tokens", 32, "--device",
             "cpu", "--repeats", 4, "--output", folder, "--ray", nodes.address)  # fmt: skip
    nodes.add(num_gpus=0)
    process = nodes.specbench(*words)
    wait_for(lambda: num_lines(folder) >= 6, process)
    while nodes.nodes:
        nodes.kill(0)
    nodes.cluster.head_node.kill_raylet()
    said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1 and "Traceback" not in said, said
    assert "No worker is left" in said and "--resume" in said.splitlines()[-1]
    assert read_header(folder).status == "failed"
