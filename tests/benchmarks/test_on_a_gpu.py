"""Events, energy and bandwidth of a GPU. Without one, these tests are skipped."""

import subprocess
import sys
from dataclasses import astuple
from functools import partial
from pathlib import Path

import pytest
import torch

from specbench.engine.clock import phase_stopwatch
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.graphs.recorder import CudaRecorder
from specbench.engine.kernels.pick_ops import pick_ops
from specbench.engine.target import Target
from specbench.log.store import read_run
from specbench.machine.bandwidth import bandwidth, cache_bytes, copy_bandwidth, nominal_bandwidth
from specbench.machine.gpu_sampler import gpu_sampler
from specbench.measure.local.energy import metered
from specbench.measure.local.memory import MemoryLedger
from specbench.registry import get
from specbench.types import Request
from tests.support.fallbacks import fallbacks, fallbacks_of_run
from tests.support.models import prompts, random_llama
from tests.support.paths import ROOT
from tests.support.weights import build

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

DEVICE = "cuda:0"


def test_a_completion_has_phases_memory_and_energy_that_fit_its_time() -> None:
    method = get("pld")
    with gpu_sampler(DEVICE) as sampler:
        target = Target(random_llama().float().to(DEVICE))
        drafter = method.build(method.options(), BuildContext(target))
        watch = phase_stopwatch(target.device)
        if sampler:
            sampler.start()
        request = Request(prompts()[3], 60)
        run = partial(decode, target, drafter, request, stopwatch=watch)
        run()
        done = MemoryLedger(target).measure("pld", partial(metered, run, sampler))
    assert done.phases is not None
    assert min(astuple(done.phases)) >= 0
    assert 0.5 * done.decode_s < sum(astuple(done.phases)) <= 1.001 * done.decode_s
    assert done.peak_memory_bytes is not None
    assert done.peak_memory_bytes >= sum(p.nbytes for p in target.model.parameters())
    assert done.energy_j is None or done.energy_j >= 0


def test_a_gpu_has_more_bandwidth_than_any_cpu_and_a_known_cache() -> None:
    device = torch.device(DEVICE)
    measured = (bandwidth(device), copy_bandwidth(device))
    assert min(measured) > 2e10
    nominal = nominal_bandwidth(device)
    assert not nominal or max(measured) < nominal
    assert 2**18 < cache_bytes(device) < 2**31


def test_the_driver_and_torch_find_the_same_card() -> None:
    with gpu_sampler(DEVICE) as sampler:
        if sampler is None:
            pytest.skip("the driver cannot be asked")
        held = torch.zeros(2**28, device=DEVICE)
        sampler.sample()
    used = sampler.describe().memory_used_bytes
    assert used is None or used.max >= held.nbytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_whole_run_replays_every_method_with_kernels(dtype: str, tmp_path: Path) -> None:
    options = ("--device", "cuda", "--dtype", dtype, "--limit", "1", "--max-new-tokens", "24")
    command = [sys.executable, "-m", "specbench", "run", *options, "--temperature", "0,1"]
    done = subprocess.run(
        [*command, "--dataset", "gsm8k", "--offline", "--output", str(tmp_path / "run")],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert fallbacks_of_run(run.header) == []
    assert "recorded" not in " ".join(run.header.warnings)
    assert {record.status for record in run.records} == {"ok"}


def test_a_peak_counts_the_drafter_and_recordings_of_its_own_method_only(tmp_path: Path) -> None:
    device = torch.device(DEVICE)
    replaying = Graphs(CudaRecorder(device), pick_ops(device, torch.float32))
    target = Target(random_llama(hidden_size=512).to(device, torch.float32), replaying)
    ledger, drafters = MemoryLedger(target), {}
    for name in ("vanilla", "medusa", "eagle2"):
        with ledger.holder(name):
            drafters[name] = build(name, target, tmp_path)
    request = Request(prompts()[3], 60)
    peaks = {}
    for _ in range(2):  # the first pass records steps
        peaks = {
            name: ledger.measure(name, partial(decode, target, drafter, request)).peak_memory_bytes
            for name, drafter in drafters.items()
        }
    model = sum(p.nbytes for p in target.model.parameters())
    assert fallbacks(target) == []
    assert peaks["vanilla"] and peaks["medusa"] and peaks["eagle2"]
    assert model < peaks["vanilla"] < peaks["eagle2"] and peaks["vanilla"] < peaks["medusa"]
    allocated = torch.cuda.memory_allocated(device)
    assert peaks["vanilla"] < allocated - drafters["medusa"].bytes_read(1)
