"""Energy counters of GPUs and processor packages, and the memory of processes, all of them fake."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from specbench.machine import processes
from specbench.machine.energy import GPU_TICK_S, PACKAGE_TICK_S, EnergyMeter, TickSampler
from specbench.machine.nvml import Card
from specbench.machine.processes import gpu_memory_bytes, listening_process, memory_bytes
from tests.machine.fake_nvml import MISSING, FakeNvml

COUNTER = "nvmlDeviceGetTotalEnergyConsumption"
MOST_UJ = 262_143_328_850


def package(powercap: Path, name: str, energy_uj: int | str) -> Path:
    """Write a RAPL folder with this counter."""
    folder = powercap / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text("package-0\n" if name.count(":") == 1 else "core\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{MOST_UJ}\n")
    return folder


def card(**answers: Any) -> tuple[Card, FakeNvml]:
    nvml = FakeNvml(**answers)
    return Card(nvml, "card"), nvml


def test_counters_measure_the_energy_of_cards_and_packages(tmp_path: Path) -> None:
    folder = package(tmp_path, "intel-rapl:0", 5_000_000)
    package(tmp_path, "intel-rapl:0:0", 1)  # a part of the package
    gpu, nvml = card(nvmlDeviceGetTotalEnergyConsumption=7_000)
    meter = EnergyMeter([gpu], tmp_path)
    before = meter.read()
    assert before == {"GPU 0": 7.0, "package-0": 5.0}
    nvml.answers["nvmlDeviceGetTotalEnergyConsumption"] = 9_500
    (folder / "energy_uj").write_text("6000000\n")
    assert meter.growth(before) == {"GPU 0": 2.5, "package-0": 1.0}
    assert (meter.tick_s, meter.absent) == (GPU_TICK_S, [])


def test_a_package_counter_wraps_around(tmp_path: Path) -> None:
    folder = package(tmp_path, "intel-rapl:0", MOST_UJ - 1_000_000)
    meter = EnergyMeter((), tmp_path)
    before = meter.read()
    (folder / "energy_uj").write_text("2000000\n")
    assert meter.growth(before)["package-0"] == pytest.approx(3.0)
    assert meter.tick_s == PACKAGE_TICK_S


def test_an_unreadable_counter_is_absent_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EnergyMeter((), tmp_path).absent == ["the processor has no energy counter here"]
    folder = package(tmp_path, "intel-rapl:0", "none")
    assert EnergyMeter((), tmp_path).absent == [f"{folder} has no energy counter"]
    read_text = Path.read_text

    def refused(path: Path, *arguments: Any, **more: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(path, *arguments, **more)

    monkeypatch.setattr(Path, "read_text", refused)
    meter = EnergyMeter((), tmp_path)
    assert meter.absent == [f"no right to read {folder / 'energy_uj'}"]
    assert meter.read() == {}


def test_a_failed_counter_loses_only_its_own_energy(tmp_path: Path) -> None:
    counter = package(tmp_path, "intel-rapl:0", 5_000_000) / "energy_uj"
    meter = EnergyMeter([card(**{COUNTER: 7_000})[0]], tmp_path)
    before = meter.read()
    counter.unlink()
    assert meter.growth(before) == meter.growth(before) == {"GPU 0": 0.0}
    assert meter.absent == ["the counter of package-0 could not always be read"]
    counter.write_text("6000000")
    assert meter.growth({}) == {}, "growth since a reading that failed is unknown"
    assert meter.growth(before) == {"GPU 0": 0.0, "package-0": 1.0}


@pytest.mark.parametrize(
    "answers",
    [
        {"nvmlDeviceGetTotalEnergyConsumption": MISSING},
        {"nvmlDeviceGetMigMode": (1, 1)},
    ],
)
def test_a_card_without_energy_of_its_own_is_absent(
    answers: dict[str, Any], tmp_path: Path
) -> None:
    package(tmp_path, "intel-rapl:0", 5)
    meter = EnergyMeter([card(**answers)[0]], tmp_path)
    assert meter.absent == ["a GPU has no counter, or is partitioned (MIG)"]
    assert {*meter.read()} == {"package-0"}


def test_ticks_are_counted_despite_missed_readings(
    tmp_path: Path,
) -> None:
    package(tmp_path, "intel-rapl:0", 5)
    gpu, nvml = card(**{COUNTER: 1_000})
    ticks = TickSampler(EnergyMeter([gpu], tmp_path), ["GPU 0"])
    assert ticks.still == ["GPU 0"]
    for millijoules in (1_000, 41_000, 41_000, 81_000, MISSING, 201_000):
        nvml.answers[COUNTER] = millijoules
        ticks.sample()
    package(tmp_path, "intel-rapl:0", 9_000_000)  # the processor's is not asked for
    ticks.sample()
    assert (ticks.joules, ticks.tick_j) == (200.0, 40.0)
    assert ticks.still == []
    nvml.answers[COUNTER] = MISSING
    ticks.sample()
    assert ticks.still == ["GPU 0"], "the energy since its last reading is unknown"


def test_memory_includes_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (memory_bytes(os.getpid()) or 0) > 2**20
    assert memory_bytes(2**22 + 1) is None, "there is no such process"
    sizes = [100, 50]

    def process(pss: int) -> SimpleNamespace:
        return SimpleNamespace(memory_full_info=lambda: SimpleNamespace(pss=pss))

    monkeypatch.setattr(processes, "process_tree", lambda pid: [process(pss) for pss in sizes])
    assert memory_bytes(1) == 150

    def refused() -> None:
        raise psutil.AccessDenied(1)

    tree = [process(100), SimpleNamespace(memory_full_info=refused)]
    monkeypatch.setattr(processes, "process_tree", lambda pid: tree)
    assert memory_bytes(1) is None, "if a part may not be read, the whole is unknown"


def test_gpu_memory_is_that_of_the_listed_processes() -> None:
    listed = [
        SimpleNamespace(pid=11, usedGpuMemory=500),
        SimpleNamespace(pid=12, usedGpuMemory=300),
        SimpleNamespace(pid=99, usedGpuMemory=7000),
        SimpleNamespace(pid=13, usedGpuMemory=None),  # as in a container, or on Windows
    ]
    cards = [card(nvmlDeviceGetComputeRunningProcesses=listed)[0]]
    assert gpu_memory_bytes(cards, {11, 12, 13}) == 800
    assert gpu_memory_bytes(cards, {5}) is None


@pytest.mark.parametrize(
    ("name", "pid", "expected"), [("vllm", 77, 77), ("docker-proxy", 77, 0), ("python", None, 0)]
)
def test_a_process_that_forwards_a_port_is_not_the_server(
    name: str, pid: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = [
        SimpleNamespace(status="ESTABLISHED", laddr=SimpleNamespace(port=8000), pid=5),
        SimpleNamespace(status=psutil.CONN_LISTEN, laddr=SimpleNamespace(port=9000), pid=6),
        SimpleNamespace(status=psutil.CONN_LISTEN, laddr=SimpleNamespace(port=8000), pid=pid),
    ]
    monkeypatch.setattr(psutil, "net_connections", lambda kind: connections)
    this_process = psutil.Process()  # a sampler's thread may still ask for it
    monkeypatch.setattr(
        psutil,
        "Process",
        lambda pid=None: SimpleNamespace(name=lambda: name) if pid else this_process,
    )
    assert listening_process(8000) == expected
    assert listening_process(1) == 0


def test_a_port_of_this_process_has_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = SimpleNamespace(
        status=psutil.CONN_LISTEN, laddr=SimpleNamespace(port=8000), pid=os.getpid()
    )
    monkeypatch.setattr(psutil, "net_connections", lambda kind: [listening])
    assert listening_process(8000) == 0
