"""Memory bandwidth, and the bytes that a step reads."""

import itertools
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.log.backend import RooflineHeader
from specbench.machine import bandwidth as module
from specbench.machine.bandwidth import (
    MIB,
    bandwidth,
    block_bytes,
    cache_bytes,
    copy_bandwidth,
    nominal_bandwidth,
)
from specbench.measure.local.traffic import draft_bytes, measure_again, measure_traffic
from specbench.types import Record
from tests.analysis.run_factory import record
from tests.machine.fake_nvml import MISSING, FakeNvml
from tests.support.architectures import config_of, random_of
from tests.support.devices import CPU
from tests.support.models import random_target
from tests.support.weights import build


def test_the_last_cache_is_the_largest_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"index0": "48K", "index1": "2048K", "index3": "32768K"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(size + "\n")
    monkeypatch.setattr(module, "_CACHES", tmp_path)
    assert cache_bytes(CPU) == 32 * MIB


def test_a_gpus_reads_and_copies_are_timed_after_work_on_other_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU takes 2 s for a block of 1000 bytes."""
    ones, calls = torch.ones, []

    def timed(before: Any, call: Any) -> float:
        calls.append((before.args, call.args))
        return 2.0

    monkeypatch.setattr(module, "_timed_on_gpu", timed)
    monkeypatch.setattr(torch, "ones", lambda shape, *, dtype, device: ones(shape, dtype=dtype))
    gpu = torch.device("cuda")
    assert (bandwidth(gpu, 1000), copy_bandwidth(gpu, 1000)) == (500.0, 1000.0)
    assert copy_bandwidth(CPU, 1000) == 0
    for (first, second), (source, target) in calls:
        assert source is second and target is first and source is not target


def test_the_bytes_of_the_fastest_read_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.chain([4.0, 2.0, 3.0], itertools.repeat(5.0))
    monkeypatch.setattr(module, "_timed", lambda call: next(times))
    assert bandwidth(CPU, 1000) == 1000 / 2.0


@pytest.mark.parametrize(
    ("cache", "weights", "block"),
    [(0, 0, 64), (4096, 0, 512), (32, 0, 64), (32, 10, 64), (32, 269, 269), (32, 16_000, 512)],
)
def test_the_blocks_size_follows_the_cache_and_the_weights(
    cache: int, weights: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that fit into a cache are read faster, and set no limit."""
    monkeypatch.setattr(module, "cache_bytes", lambda device: cache * MIB)
    assert block_bytes(CPU, weights * MIB) == block * MIB


def test_the_bytes_of_a_step_are_those_of_the_targets_weights() -> None:
    traffic = measure_traffic(random_target())
    assert traffic.bandwidth_bytes_per_s > 1e8
    assert traffic.block_bytes == block_bytes(CPU, traffic.target_bytes)
    assert (
        traffic.kv_bytes_per_token == 4 * 2 * 2 * 8 * 8
    )  # layers, keys and values, heads, size, float64
    assert traffic.target_bytes > traffic.kv_bytes_per_token
    assert traffic.is_mixture_of_experts is False


def test_half_of_the_experts_of_a_mixture_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.machine.bandwidth.bandwidth", lambda *given: 1.0)
    model = random_of(config_of("qwen3_moe", num_experts=4, num_experts_per_tok=2))
    target = Target(model)
    traffic = measure_traffic(target)
    monkeypatch.setitem(vars(target.config), "num_experts_per_tok", [1, 3])  # for each layer
    assert measure_traffic(target).unread_bytes == traffic.unread_bytes
    experts = [parameter for name, parameter in model.named_parameters() if ".experts." in name]
    assert traffic.is_mixture_of_experts
    assert traffic.unread_bytes == sum(weight.nbytes for weight in experts) / 2 > 0


def steps(method: str, *num_nodes: int) -> Record:
    steps_record = record(method, accept_lengths=[1] * len(num_nodes))
    return Record(steps_record.key, "ok", 10, steps_record.token_ids, num_nodes=num_nodes)


def test_a_draft_models_bytes_are_those_of_its_mean_draft(tmp_path: Path) -> None:
    target = random_target()
    sps = build("sps", target, tmp_path)
    records = [steps("sps", 3, 3, 6), steps("sps", 8), steps("vanilla", 1)]
    drafters = {"sps": sps, "vanilla": build("vanilla", target, tmp_path), "pld": Drafter()}
    assert draft_bytes(drafters, records) == {"sps": sps.bytes_read(5), "vanilla": 0.0}
    assert sps.bytes_read(5) == 4 * sps.bytes_read(2) > 0


@pytest.mark.parametrize(("before", "after"), [(2.0, 3.0), (3.0, 2.0)])
def test_the_larger_bandwidth_before_or_after_a_run_counts(
    before: float, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "bandwidth", lambda device, block: after)
    header = RooflineHeader(before, 0, 10, 1, is_mixture_of_experts=False, block_bytes=7)
    again = measure_again(header, CPU)
    assert (again.bandwidth_bytes_per_s, again.bandwidth_samples) == (3.0, (before, after))


@pytest.mark.parametrize(
    ("clock", "width", "nominal"),
    [(2619, 5120, 3.35232e12), (MISSING, 5120, 0.0), (2619, MISSING, 0.0)],
)
def test_the_nominal_bandwidth_follows_from_clock_and_bus(
    clock: Any, width: Any, nominal: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first case is an H100."""
    nvml = FakeNvml(nvmlDeviceGetMaxClockInfo=clock, nvmlDeviceGetMemoryBusWidth=width)
    card = SimpleNamespace(uuid="1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(module, "driver", lambda: nullcontext(nvml))
    assert nominal_bandwidth(torch.device("cuda")) == pytest.approx(nominal)
    assert nominal_bandwidth(CPU) == 0


def test_a_plug_in_that_cannot_count_its_bytes_does_not_end_the_run() -> None:
    class Odd(Drafter):
        def bytes_read(self, num_nodes: int) -> float:
            raise ZeroDivisionError

    assert draft_bytes({"odd": Odd()}, [steps("odd", 4)]) == {}
