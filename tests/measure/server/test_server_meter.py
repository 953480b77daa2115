"""A server's memory and energy in a block: subtracted amounts, and reasons for unknown values."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.analysis.server_use import served_joules_per_token
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.log.backend import ServerUse
from specbench.log.run import Run
from specbench.machine.cpu_sampler import CpuMoment
from specbench.machine.energy import IDLE_S, EnergyMeter
from specbench.machine.nvml import Card
from specbench.measure.server import server_meter
from specbench.measure.server.server_meter import ELSEWHERE, BlockMeter, ServerMeters, local_process
from specbench.report.build import make_report
from tests.analysis.test_serving import ONE, answer, block, run
from tests.machine.fake_nvml import FakeNvml
from tests.machine.test_energy import package

IDS = {"vanilla": 11, "eagle3": 21}
SHARED_IDS = {**IDS, "another size": 11}
GB = 10**9


class Machine:
    """A machine with a GPU and a processor package. Tests set its counters and processes."""

    def __init__(self, powercap: Path) -> None:
        self.package = package(powercap, "intel-rapl:0", 0)
        self.pids = [11, 12, 21]  # of the programs on the GPU
        self.moment = CpuMoment(cores_s=0.0, work_s=0.0, own_s=0.0)
        self.cpu_s = {11: 0.0, 21: 0.0}
        self.now_s = 100.0
        self.nvml = FakeNvml(nvmlDeviceGetComputeRunningProcesses=lambda card: self._listed())
        self.meter = EnergyMeter([Card(self.nvml, "card")], powercap)

    def _listed(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=4 * GB) for pid in self.pids]

    def passes(self, seconds: float, *, gpu_j: float = 0.0, package_j: float = 0.0) -> None:
        """Let time pass, and let the counters grow."""
        self.now_s += seconds
        answers = self.nvml.answers
        answers["nvmlDeviceGetTotalEnergyConsumption"] += round(gpu_j * 1e3)
        counter = self.package / "energy_uj"
        counter.write_text(f"{int(counter.read_text()) + round(package_j * 1e6)}")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    fake = Machine(tmp_path)
    trees = {11: [11, 12], 21: [21]}
    changes: dict[str, Any] = {
        "perf_counter": lambda: fake.now_s,
        "read_moment": lambda: fake.moment,
        "cpu_seconds": lambda pid: fake.cpu_s[pid],
        "process_tree": lambda pid: [SimpleNamespace(pid=pid) for pid in trees[pid]],
        "memory_bytes": lambda pid: 3 * GB,
    }
    for name, change in changes.items():
        monkeypatch.setattr(server_meter, name, change)
    yield fake


IDLE_W = {"GPU 0": 50.0, "package-0": 10.0}


def of_block(
    machine: Machine, *, idle_w: Mapping[str, float] = IDLE_W, **grown: float
) -> ServerUse:
    """The use of vanilla's server in a block of ten seconds, while counters grow like this."""
    meter = BlockMeter(IDS, "vanilla", machine.meter, idle_w)
    machine.passes(10.0, **grown)
    return meter.use()


def test_the_power_of_the_idle_server_is_subtracted(machine: Machine) -> None:
    assert of_block(machine, gpu_j=2000.0, package_j=300.0) == ServerUse(
        memory_bytes=3 * GB,
        gpu_memory_bytes=8 * GB,  # used by the server and its worker
        energy_j=2000.0 + 300.0 - 10 * (50 + 10),
        meters=("GPU 0", "package-0"),
        idle_w=60.0,
        tick_s=0.1,
    )


def test_a_server_that_rests_uses_nothing(machine: Machine) -> None:
    assert of_block(machine, gpu_j=499.0, package_j=99.0).energy_j == 0.0


def test_other_programs_on_a_gpu_make_its_energy_unknown(machine: Machine) -> None:
    machine.pids.append(99)
    use = of_block(machine, gpu_j=2000.0, package_j=300.0)
    assert (use.energy_j, use.meters) == (200.0, ("package-0",))
    assert use.absent == ("other programs used GPU 0",)


def test_a_gpu_that_the_server_is_not_on_does_not_count(machine: Machine) -> None:
    machine.pids.clear()
    use = of_block(machine, gpu_j=2000.0, package_j=300.0)
    assert (use.energy_j, use.meters, use.absent) == (200.0, ("package-0",), ())
    assert use.gpu_memory_bytes is None


def test_a_counter_that_fails_in_a_block_makes_its_energy_unknown(machine: Machine) -> None:
    meter = BlockMeter(IDS, "vanilla", machine.meter, IDLE_W)
    machine.passes(10.0, gpu_j=2000.0)
    (machine.package / "energy_uj").unlink()
    assert meter.use().meters == ("GPU 0",)


@pytest.mark.parametrize("process_ids", [IDS, SHARED_IDS])
@pytest.mark.parametrize(("others_s", "is_shared"), [(1.0, False), (8.0, True)])
def test_programs_that_take_the_processor_make_its_energy_unknown(
    others_s: float, is_shared: bool, process_ids: Mapping[str, int], machine: Machine
) -> None:
    meter = BlockMeter(process_ids, "vanilla", machine.meter, IDLE_W)
    machine.passes(10.0, gpu_j=2000.0, package_j=300.0)
    machine.cpu_s[11] = 9.0  # the server's, on four cores
    machine.moment = CpuMoment(cores_s=40.0, work_s=10.0 + others_s, own_s=1.0)
    use = meter.use()
    assert use.meters == (("GPU 0",) if is_shared else ("GPU 0", "package-0"))
    assert use.absent == (("other programs used the processor",) if is_shared else ())


@pytest.mark.parametrize("process_ids", [IDS, SHARED_IDS])
def test_idle_servers_that_use_a_gpu_are_counted(
    process_ids: Mapping[str, int], machine: Machine
) -> None:
    samples = [SimpleNamespace(pid=21, smUtil=99, timeStamp=5)]  # before the block
    machine.nvml.answers["nvmlDeviceGetProcessUtilization"] = lambda card, since_us: [
        sample for sample in samples if sample.timeStamp > since_us
    ]
    meter = BlockMeter(process_ids, "vanilla", machine.meter, IDLE_W)
    assert meter.idle_gpu() == {}
    percents = {12: 90, 21: 7, 99: 50}  # of the measured one, of the other, of another program
    samples += [
        SimpleNamespace(pid=pid, smUtil=percent, timeStamp=6) for pid, percent in percents.items()
    ]
    assert meter.idle_gpu() == {"eagle3": 0.07}
    assert meter.header_fields().keys() == {"idle_cpu_s", "idle_gpu", "use"}


def test_without_samples_idle_servers_are_unknown(machine: Machine) -> None:
    assert BlockMeter(IDS, "vanilla", machine.meter, IDLE_W).idle_gpu() == {}


def test_a_server_elsewhere_has_neither_memory_nor_energy(machine: Machine) -> None:
    assert BlockMeter({}, "vanilla", machine.meter, {}).use() == ServerUse(absent=(ELSEWHERE,))
    assert local_process("http://10.0.0.7:8000") == 0
    assert local_process("https://localhost") == 0


def test_the_idle_power_is_measured_once_before_the_first_block(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        machine.passes(seconds, gpu_j=50.0 * seconds, package_j=10.0 * seconds)

    monkeypatch.setattr("specbench.measure.server.server_meter.asyncio.sleep", sleep)

    async def use() -> ServerUse:
        meters = ServerMeters(machine.meter)
        for _ in range(2):
            meter = await meters.of_block(IDS, "vanilla")
        machine.passes(10.0, gpu_j=2000.0, package_j=300.0)
        await meters.of_block({}, "remote")
        return meter.use()

    assert asyncio.run(use()).energy_j == pytest.approx(1700.0)
    assert waits == [IDLE_S]


def served(uses: Mapping[str, list[dict[str, Any]]]) -> Run:
    """A run of blocks of two seconds and 44 tokens. `uses` has what each block used, by method."""
    blocks = [
        block(method, ONE, duration_s=2.0, repeat=repeat, use=ServerUse(**use))
        for method, uses_of_method in uses.items()
        for repeat, use in enumerate(uses_of_method)
    ]
    records = [answer(method, i, ONE, wall_s=1.0) for method in uses for i in range(2)]
    return run(records, blocks, [ONE])


METERED = {"meters": ("GPU 0",), "idle_w": 60.0, "tick_s": 0.1, "memory_bytes": 2 * GB}


def test_the_report_has_joules_per_token_and_memory() -> None:
    use = {**METERED, "energy_j": 440.0, "gpu_memory_bytes": 5 * GB}
    served_run = served({"vanilla": [use, use], "eagle3": [{**METERED, "energy_j": 220.0}]})
    vanilla_blocks = [block for block in served_run.header.blocks if block.method == "vanilla"]
    assert served_joules_per_token(vanilla_blocks) == Estimate(10.0)
    (note,) = [note for note in make_report(served_run).notes if note.key == "server_use"]
    assert note.text == (
        "vanilla 2 GB and 5 GB on GPUs, 10 J per token; eagle3 2 GB, 5 J per token, energy from "
        "GPU 0, minus the idle server's 60 W (the slowest counter changes every 0.1 s)."
    )


@pytest.mark.parametrize(
    ("uses", "reason"),
    [
        ([{"memory_bytes": 2 * GB}], "not measured"),
        ([{**METERED, "energy_j": 20.0}], "the counter is too coarse"),  # 0.1 s of 70 W are 7 J
    ],
)
def test_meaningless_energy_is_missing(uses: list[dict[str, Any]], reason: str) -> None:
    assert served_joules_per_token(served({"vanilla": uses}).header.blocks) == Missing(reason)


def test_the_report_says_why_energy_is_absent() -> None:
    reason = "no right to read /sys/class/powercap/intel-rapl:0/energy_uj"
    served_run = served({"vanilla": [{"memory_bytes": 2 * GB, "absent": (reason,)}]})
    (note,) = [note for note in make_report(served_run).notes if note.key == "server_use"]
    assert note.text == f"vanilla 2 GB, not measured: {reason}."
    elsewhere = served({"vanilla": [{"absent": (ELSEWHERE,)}]})
    (note,) = [note for note in make_report(elsewhere).notes if note.key == "server_use"]
    assert note.text == f"not measured: {ELSEWHERE}."
