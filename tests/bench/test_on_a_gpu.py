"""What only a GPU can tell: events, energy, bandwidth. Skipped without one."""

from __future__ import annotations

from dataclasses import astuple

import pytest
import torch

from specbench.bench.bandwidth import bandwidth, cache_bytes
from specbench.bench.gpu_sampler import gpu_sampler, metered
from specbench.bench.session import build_completers
from specbench.engine.drafter import BuildContext
from specbench.engine.target import Target
from specbench.registry import get
from specbench.types import Request
from tests.support.models import prompts, random_llama

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
        completers = build_completers(target, {"pld": drafter}, has_phases=True)
        if sampler:
            sampler.start()
        complete = metered(completers, target.device, sampler)["pld"]
        complete(Request(prompts()[3], 60))
        done = complete(Request(prompts()[3], 60))
    assert done.phases is not None
    assert min(astuple(done.phases)) >= 0
    assert 0.5 * done.decode_s < sum(astuple(done.phases)) <= 1.001 * done.decode_s
    assert done.peak_memory_bytes is not None
    assert done.peak_memory_bytes >= sum(p.nbytes for p in target.model.parameters())
    assert done.energy_j is None or done.energy_j >= 0


def test_a_gpus_memory_is_faster_than_any_processors_and_its_cache_is_known() -> None:
    device = torch.device(DEVICE)
    assert bandwidth(device) > 2e10
    assert 2**18 < cache_bytes(device) < 2**31


def test_the_driver_and_torch_mean_the_same_card() -> None:
    with gpu_sampler(DEVICE) as sampler:
        if sampler is None:
            pytest.skip("the driver cannot be asked")
        held = torch.zeros(2**28, device=DEVICE)
        sampler.sample()
    used = sampler.describe()["memory_used_bytes"]
    assert used is None or used["max"] >= held.nbytes
