"""GPU counters of a run, from a fake driver, and the processor time that other programs take."""

import itertools
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from specbench.log.usage import CpuUse, GpuUse, Span
from specbench.machine.cpu_sampler import CpuMoment, CpuSampler, read_moment
from specbench.machine.gpu_sampler import GpuSampler, gpu_sampler
from specbench.machine.nvml import Card, find_card
from specbench.machine.pauses import LEAST_PAUSE_S, Moment, PauseWatch
from specbench.measure.local.energy import metered
from specbench.types import Completion, Step
from tests.machine.fake_nvml import MISSING, FakeNvml
from tests.support.ends import wait_until

CARD = SimpleNamespace(uuid="1b2c")


def sampler(nvml: FakeNvml | None = None, **options: Any) -> GpuSampler:
    return GpuSampler(Card(nvml or FakeNvml(), "card"), **options)


def sampled(nvml: FakeNvml, times: int = 50, **options: Any) -> GpuSampler:
    sampler_of_card = sampler(nvml, **options)
    for _ in range(times):
        sampler_of_card.sample()
    return sampler_of_card


def test_clocks_heat_power_and_memory_have_minimum_mean_and_maximum() -> None:
    clocks = itertools.cycle([1000, 1000, 2000, 2000])  # processor and memory in turn
    use = sampled(FakeNvml(nvmlDeviceGetClockInfo=lambda *_: next(clocks)), 2).describe()
    assert str(use.sm_clock_mhz) == "Span(min=1000.0, mean=1500.0, max=2000.0)"
    assert use.power_w == Span(min=300, mean=300, max=300)
    assert use.temperature_c is not None and use.temperature_c.max == 40
    assert use.memory_used_bytes is not None and use.memory_used_bytes.max == 7
    assert use.num_samples == 2 and sampled(FakeNvml()).describe().warnings == []
    assert msgspec.json.decode(msgspec.json.encode(use), type=GpuUse) == use


def test_throttling_is_reported_with_reason_and_share_unless_it_is_rare() -> None:
    reasons = itertools.chain([0x40] * 20, [0x04 | 0x01] * 10, [0x20], itertools.repeat(0))
    nvml = FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=lambda *_: next(reasons))
    card = sampled(nvml, 100)
    shares = {"power cap": 0.1, "heat (software)": 0.01, "heat (hardware)": 0.2}
    assert card.describe().throttled == shares
    (warning,) = card.describe().warnings
    assert "power cap 10 %, heat (hardware) 20 %" in warning


def test_an_older_driver_is_asked_by_the_older_name() -> None:
    nvml = FakeNvml(
        nvmlDeviceGetCurrentClocksEventReasons="NVML_ERROR_FUNCTION_NOT_FOUND",
        nvmlDeviceGetCurrentClocksThrottleReasons=0x80,
    )
    assert sampled(nvml).describe().throttled == {"power brake": 1.0}


def test_only_other_processes_on_the_card_give_a_warning() -> None:
    nvml = FakeNvml(nvmlDeviceGetComputeRunningProcesses=["one", "other"])
    assert "shared with 2 other processes" in sampled(nvml).describe().warnings[0]
    assert (
        "shared with 1 other process:"
        in sampled(nvml, holds_card=lambda: True).describe().warnings[0]
    )
    alone = FakeNvml(nvmlDeviceGetComputeRunningProcesses=["one"])
    assert sampled(alone, holds_card=lambda: True).describe().warnings == []


def test_a_card_that_was_busy_before_gives_a_warning() -> None:
    nvml = FakeNvml(nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=83))
    (warning,) = sampled(nvml).describe().warnings
    assert warning == "The GPU was 83 % busy before the run began: times are noisy."


def test_energy_comes_from_the_drivers_counter() -> None:
    nvml = FakeNvml(nvmlDeviceGetTotalEnergyConsumption=5_000)
    card = sampler(nvml)
    nvml.answers["nvmlDeviceGetTotalEnergyConsumption"] = 12_500
    assert card.energy_j() == 12.5
    assert card.describe().energy_source == "counter"


def test_without_a_counter_there_is_no_energy() -> None:
    card = sampled(FakeNvml(nvmlDeviceGetTotalEnergyConsumption=MISSING))
    assert card.energy_j() is None
    assert card.describe().energy_source is None


@pytest.mark.parametrize("code", [MISSING, "NVML_ERROR_NO_PERMISSION"])
def test_values_without_support_or_permission_are_missing(code: str) -> None:
    questions = [name for name in FakeNvml().answers if not name.endswith("UUID")]
    card = sampled(FakeNvml(**dict.fromkeys(questions, code)))
    use = card.describe()
    assert use.num_samples == 50
    assert (use.power_w, use.temperature_c, use.percent_busy_before) == (None,) * 3
    assert card.energy_j() is None
    assert card.describe().warnings == []


def test_a_partition_of_a_card_has_no_energy_of_its_own() -> None:
    card = sampled(FakeNvml(nvmlDeviceGetMigMode=(1, 1)))
    assert card.energy_j() is None
    assert card.describe().energy_source is None
    assert "MIG" in card.describe().warnings[0]
    assert not sampled(FakeNvml(nvmlDeviceGetMigMode=(0, 0))).is_partition


def test_a_card_that_disappears_ends_only_the_sampling() -> None:
    nvml = FakeNvml()
    card = sampled(nvml, 3)
    nvml.answers["nvmlDeviceGetPowerUsage"] = "NVML_ERROR_GPU_IS_LOST"
    card.start()
    card.stop()
    asked = dict(nvml.asked)
    card.sample()
    assert nvml.asked == asked
    assert card.describe().num_samples == 3
    assert card.energy_j() is None
    assert "lost the GPU" in card.describe().warnings[0]


def num_sampling() -> int:
    return sum(thread.name == "GpuSampler" for thread in threading.enumerate())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A machine with one card."""
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: CARD)
    return nvml


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_the_sampling_thread_ends_with_the_run(gpu: FakeNvml, end: type[BaseException]) -> None:
    with pytest.raises(end), gpu_sampler("cuda") as card:
        assert card is not None
        card.start()
        assert wait_until(lambda: "nvmlDeviceGetPowerUsage" in gpu.asked)
        assert num_sampling() == 1
        card.stop()  # and again at the end
        raise end
    assert num_sampling() == 0
    assert gpu.is_shut


def test_a_cpu_or_a_missing_driver_has_no_sampler(
    gpu: FakeNvml,
) -> None:
    with gpu_sampler("cpu") as card:
        assert card is None
    assert gpu.asked == {}
    gpu.answers["nvmlInit"] = "NVML_ERROR_DRIVER_NOT_LOADED"
    with gpu_sampler("cuda") as card:
        assert card is None


@pytest.mark.parametrize("name", ["GPU-1b2c", "MIG-1b2c"])
def test_a_card_is_found_by_torchs_uuid_and_never_by_number(name: str) -> None:
    def find(asked: str) -> str:
        return "this one" if asked == name else "NVML_ERROR_NOT_FOUND"

    nvml = FakeNvml(nvmlDeviceGetHandleByUUID=find)
    nvml.answers["nvmlDeviceGetPowerUsage"] = lambda handle: f"power of {handle}"
    card = find_card(nvml, CARD)
    assert card and card.query("nvmlDeviceGetPowerUsage") == "power of this one"


def test_a_completion_gets_its_energy() -> None:
    counter = iter([0, 1_000, 4_500])  # the first one says that there is a counter
    nvml = FakeNvml(nvmlDeviceGetTotalEnergyConsumption=lambda *_: next(counter))

    def complete() -> Completion:
        return Completion((1, 2), "budget", (Step(1, 1),), 0.1, 0.2)

    done = metered(complete, sampler(nvml))
    assert (done.energy_j, done.token_ids) == (3.5, (1, 2))
    assert metered(complete, None).energy_j is None


def cpu_sampled(*moments: CpuMoment) -> CpuUse | None:
    sampler = CpuSampler(iter(moments).__next__)
    for _ in moments[1:]:
        sampler.sample()
    return sampler.describe()


def test_the_share_of_others_leaves_out_the_runs_work() -> None:
    """The machine has two cores and is sampled once per second.

    The run works 1 s. Other programs work 0 s, then half a second.
    """
    use = cpu_sampled(
        CpuMoment(0, 0, 0), CpuMoment(2, 1, 1, clock_mhz=3000), CpuMoment(4, 2.5, 2, clock_mhz=2500)
    )
    assert use is not None
    assert (use.num_samples, use.share_of_others) == (2, Span(0.0, 0.125, 0.25))
    assert use.clock_mhz == Span(2500, 2750, 3000)


def test_stalled_or_rounded_counters_give_a_possible_share() -> None:
    assert cpu_sampled(CpuMoment(1, 1, 1), CpuMoment(1, 1, 1)) is None
    use = cpu_sampled(CpuMoment(0, 0, 0), CpuMoment(2, 1, 1.01))
    assert use is not None and use.share_of_others == Span(0, 0, 0)
    assert use.others_warning is None
    busy = cpu_sampled(CpuMoment(0, 0, 0), CpuMoment(2, 1.5, 1))
    assert busy and "25 % of the processor" in (busy.others_warning or "")


def test_the_counters_of_this_machine_advance() -> None:
    first = read_moment()
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    second = read_moment()
    assert second.own_s - first.own_s >= 0.05
    assert second.cores_s >= first.cores_s and second.work_s >= first.work_s


@pytest.mark.parametrize(
    ("clock_s", "work_s", "pause_s"),
    [
        (5.0, 0.0, 5.0),  # stopped, or asleep
        (5.0, 5.0, 0.0),  # at work, while no sample could be taken
        (5.0, 2.0, 3.0),  # both
        (LEAST_PAUSE_S / 2, 0.0, 0.0),  # too short for a pause
    ],
)
def test_a_gap_in_the_threads_work_is_a_pause(
    clock_s: float, work_s: float, pause_s: float
) -> None:
    later = Moment(100.0 + clock_s, 7.0 + work_s)
    moments = iter([Moment(100.0, 7.0), later, later])
    watch = PauseWatch(lambda: next(moments))
    assert [watch.take(), watch.take()] == [pytest.approx(pause_s), 0.0]  # a pause is reported once


def test_only_a_stop_is_a_pause() -> None:
    with PauseWatch() as watch:
        time.sleep(0.3)
        waited = watch.take()
        end = time.thread_time() + 0.25
        while time.thread_time() < end:
            pass
        worked = watch.take()
        subprocess.Popen(
            ["sh", "-c", f"kill -STOP {os.getpid()}; sleep 0.4; kill -CONT {os.getpid()}"]
        ).wait()
        assert watch.take() >= 0.3
    assert (waited, worked) == (0.0, 0.0)
