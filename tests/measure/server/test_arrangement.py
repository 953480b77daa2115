"""Started servers run side by side if memory allows, else in turn.

Servers that use the processor while they are idle are reported.
"""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specbench.errors import SpecbenchError
from specbench.log.backend import Arrangement
from specbench.machine import memory
from specbench.machine.energy import EnergyMeter
from specbench.machine.memory import GpuMemory
from specbench.machine.processes import cpu_seconds
from specbench.measure.server import arrangement, server_meter
from specbench.measure.server.arrangement import arrange
from specbench.measure.server.engine import Launch, load_engine
from specbench.measure.server.server_meter import BlockMeter
from specbench.report.build import make_report
from specbench.zoo import TINY
from tests.analysis.test_serving import ONE, answer, block, run
from tests.judge.changing import with_header
from tests.machine.fake_nvml import MISSING, FakeNvml
from tests.measure.server.test_started import ASK, launch, pids, started
from tests.support.ends import are_gone

GB = 10**9
TOGETHER = Arrangement(True)


def launches(*, is_cpu: bool = True, num_at_once: int = 4) -> list[Launch]:
    """Vanilla and a draft model of `tiny`, in float32."""
    vanilla = replace(
        launch(TINY / "target", "vanilla"),
        model=TINY / "target",
        is_cpu=is_cpu,
        num_at_once=num_at_once,
        context=1024,
    )
    return [vanilla, replace(vanilla, method="sps", weights=TINY / "sps")]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, GpuMemory | int | None]:
    """The free memory of the machine and of its GPU, which tests set."""
    bytes_of: dict[str, GpuMemory | int | None] = {"cpu": 10**12, "gpu": None}
    monkeypatch.setattr(arrangement, "free_bytes", lambda device: bytes_of[device])
    monkeypatch.setattr(arrangement, "gpu_memory", lambda: bytes_of["gpu"])
    return bytes_of


def test_weights_caches_and_processes_are_counted(free: dict[str, int]) -> None:
    both = arrange(load_engine("vllm"), launches(), ())
    assert both and both.is_side_by_side and both.free_bytes == 10**12
    files = [folder / "model.safetensors" for folder in (TINY / "target", TINY / "sps")]
    target, sps = (file.stat().st_size for file in files)
    # vLLM reserves 1 GiB for keys and values on a CPU; float16 weights double in size.
    counted = both.needed_bytes - 2 * 4 * GB - 2 * 2**30
    assert 2 * target + sps <= counted <= 2 * (2 * target + sps)
    more = arrange(load_engine("vllm"), launches(num_at_once=4096), ())
    assert more and more.needed_bytes > both.needed_bytes, "caches grow with requests at once"


@pytest.mark.parametrize(("num_free", "is_side_by_side"), [(14 * GB, True), (12 * GB, False)])
def test_servers_on_a_cpu_need_room_for_all(
    num_free: int, is_side_by_side: bool, free: dict[str, int]
) -> None:
    free["cpu"] = num_free  # about 10.2 GB are needed, and 80 % may be used
    both = arrange(load_engine("vllm"), launches(), ())
    assert both and both.is_side_by_side is is_side_by_side
    assert not both.reason and both.needed_bytes


@pytest.mark.parametrize(
    ("engine", "gpu", "expected"),
    [
        ("vllm", GpuMemory(80 * GB, 80 * GB), (True, 0.4, "")),
        ("vllm", GpuMemory(40 * GB, 80 * GB), (True, 0.2, "")),
        ("vllm", GpuMemory(9 * GB, 80 * GB), (False, 0.0, "")),  # a share is less than 4 GB
        ("vllm", None, (False, 0.0, "the memory of the GPU cannot be read")),
        ("sglang", GpuMemory(80 * GB, 80 * GB), (False, 0.0, "SGLang cannot be given a share")),
    ],
)
def test_servers_on_a_gpu_get_equal_shares(
    engine: str,
    gpu: GpuMemory | None,
    expected: tuple[bool, float, str],
    free: dict[str, GpuMemory | None],
) -> None:
    free["gpu"] = gpu
    both = arrange(load_engine(engine), launches(is_cpu=False), ())
    assert both
    is_side_by_side, share, reason = expected
    assert (both.is_side_by_side, both.gpu_share) == (is_side_by_side, share)
    assert both.reason.startswith(reason) and bool(both.reason) is bool(reason)


def test_llama_cpp_takes_only_the_gpu_memory_it_needs(
    free: dict[str, GpuMemory | None], tmp_path: Path
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"0" * 1000)
    both = [replace(asked, model=tmp_path, weights=None) for asked in launches(is_cpu=False)]
    needed_bytes = 2 * (1000 + 5 * 10**8)
    for num_free, is_enough in ((13 * 10**8, True), (12 * 10**8, False)):  # 80 % may be used
        free["gpu"] = GpuMemory(num_free, 10**10)
        expected = Arrangement(is_enough, needed_bytes, num_free)
        assert arrange(load_engine("llamacpp"), both, ()) == expected


def test_arguments_of_the_user_make_the_need_unknown(free: dict[str, int]) -> None:
    both = arrange(load_engine("vllm"), launches(), ("--tensor-parallel-size", "2"))
    assert both and not both.is_side_by_side and "--engine-args" in both.reason
    assert arrange(load_engine("vllm"), launches()[:1], ()) is None, "a single server has no turns"


def test_the_share_is_a_flag_of_the_server() -> None:
    alone = load_engine("vllm").arguments(launches(is_cpu=False)[0])
    assert "--gpu-memory-utilization" not in alone
    shared = load_engine("vllm").arguments(replace(launches(is_cpu=False)[0], gpu_share=0.4))
    assert shared[shared.index("--gpu-memory-utilization") + 1] == "0.4"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, GpuMemory(73, 80)),
        ("1,0", GpuMemory(33, 40)),
        ("GPU-b", GpuMemory(33, 40)),
        ("7", None),
        ("", None),
    ],
)
def test_memory_is_that_of_the_first_visible_gpu(
    visible: str | None, expected: GpuMemory | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {0: 80, 1: 40}
    nvml = FakeNvml(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda name: 1,
        nvmlDeviceGetMemoryInfo=lambda card: SimpleNamespace(used=7, total=sizes[card]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert memory.gpu_memory() == expected
    nvml.answers["nvmlDeviceGetMemoryInfo"] = MISSING
    assert memory.gpu_memory() is None


def test_servers_side_by_side_all_end(tmp_path: Path) -> None:
    children = tmp_path / "children"

    async def use() -> None:
        servers = started(tmp_path, "--children", str(children), turns=TOGETHER)
        try:
            first = await servers.open("vanilla")
            assert {*servers.process_ids()} == {"vanilla", "ngram"}, "all run from the beginning"
            before = pids(children)  # processes of the server started last
            second = await servers.open("ngram")
            assert await servers.open("vanilla") is first
            assert await servers.open("ngram") is second
            assert pids(children) == before and not are_gone(*before)
            assert (await second.complete(ASK)).counts.accepted_per_step == (2, 1)
            await servers.end_pass()  # the next pass starts without what they remember
            assert are_gone(*before) and not servers.process_ids()
            assert await servers.open("ngram") is not second
        finally:
            await servers.close()
        assert are_gone(*pids(children))

    asyncio.run(use())


def test_a_server_that_does_not_start_leaves_the_others(tmp_path: Path) -> None:
    async def use() -> None:
        servers = started(tmp_path, "--fail", "ngram", turns=TOGETHER)
        for _ in range(2):
            assert await servers.open("vanilla")
            with pytest.raises(SpecbenchError, match="no memory left"):
                await servers.open("ngram")
        await servers.close()

    asyncio.run(use())
    assert (tmp_path / "ngram.log").read_text().count("starting") == 1, "it is not started again"


def test_a_server_that_is_killed_is_started_again_beside_the_others(tmp_path: Path) -> None:
    async def use() -> None:
        servers = started(tmp_path, turns=TOGETHER)
        try:
            killed, other = await servers.open("vanilla"), await servers.open("ngram")
            os.kill(killed.process_id, signal.SIGKILL)
            assert "ended with status" in await killed.wait_for_death()
            again = await servers.open("vanilla")
            assert again is not killed and again.process_id != killed.process_id
            assert await servers.open("ngram") is other and not other.death()
            assert (await again.complete(ASK)).num_tokens
        finally:
            await servers.close()

    asyncio.run(use())


@pytest.mark.parametrize(
    ("process_ids", "idle"),
    [
        pytest.param({"vanilla": 1, "eagle3": 2, "sps": 3}, "eagle3", id="a server per method"),
        pytest.param(
            {"sps:num_tokens=2": 1, "sps:num_tokens=8": 1, "vanilla": 2},
            "vanilla",
            id="a server that two sizes share",
        ),
    ],
)
def test_idle_servers_that_use_the_processor_are_counted(
    process_ids: dict[str, int], idle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_s = {1: 5.0, 2: 7.0, 3: 9.0}
    monkeypatch.setattr(server_meter, "cpu_seconds", used_s.__getitem__)
    active = next(iter(process_ids))
    meter = BlockMeter(process_ids, active, EnergyMeter((), Path("/none")), {})
    used_s.update({1: 50.0, 2: 8.25})
    assert meter.idle_cpu_s() == {idle: 1.25}


def test_the_processor_time_of_a_process_grows_with_its_work() -> None:
    before_s = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) < before_s + 0.02:
        sum(range(10**5))
    assert cpu_seconds(2**22 + 1) == 0.0, "there is no such process"


@pytest.mark.parametrize(
    ("idle_cpu_s", "idle_gpu", "text"),
    [
        ({"eagle3": 0.5}, {}, "eagle3 0.25 cores."),
        ({"eagle3": 0.5}, {"eagle3": 0.2}, "eagle3 0.25 cores 20 % of a GPU."),
        ({}, {"eagle3": 0.2}, "eagle3 20 % of a GPU."),
        ({"eagle3": 0.04}, {"eagle3": 0.02}, ""),
        ({}, {}, ""),
    ],
)
def test_the_report_names_engines_that_are_busy_while_idle(
    idle_cpu_s: dict[str, float], idle_gpu: dict[str, float], text: str
) -> None:
    blocks = [
        block("vanilla", ONE, duration_s=2.0, idle_cpu_s=idle_cpu_s, idle_gpu=idle_gpu),
        block("eagle3", ONE, duration_s=9.0),
    ]
    records = [answer(method, 1, ONE, wall_s=1.0) for method in ("vanilla", "eagle3")]
    notes = make_report(run(records, blocks, [ONE])).notes
    sentences = [note.text for note in notes if note.key == "idle_engines"]
    assert bool(sentences) is bool(text) and text in "".join(sentences)


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        (
            {"is_side_by_side": True, "needed_bytes": 4 * GB, "free_bytes": 9 * GB},
            "all running at once, taking turns by task and load (about 4 GB needed for weights, "
            "caches and processes, 9 GB free).",
        ),
        (
            {"is_side_by_side": False, "reason": "the memory of the GPU cannot be read"},
            "one at a time, taking turns by pass, because the memory of the GPU cannot be read.",
        ),
        ({"is_side_by_side": True, "gpu_share": 0.4}, ", each with 40 % of the GPU's memory."),
    ],
)
def test_the_report_says_how_engines_take_turns(turns: dict[str, object], text: str) -> None:
    records = [answer("vanilla", 1, ONE, wall_s=1.0)]
    served_run = run(records, [block("vanilla", ONE, duration_s=2.0)], [ONE])
    notes = make_report(with_header(served_run, arrangement=turns)).notes
    (sentence,) = [note.text for note in notes if note.key == "arrangement"]
    assert sentence.endswith(text)
    assert not [note for note in make_report(served_run).notes if note.key == "arrangement"]
