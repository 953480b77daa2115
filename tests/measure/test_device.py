"""`--device` on machines with fake GPUs, for models that fit one, two or none.

A completion's peak memory counts its own method only, with a fake allocator.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from specbench.engine.graphs import recorder
from specbench.engine.kernels import pick_ops
from specbench.engine.layers.ops import Ops
from specbench.errors import TooLarge, UserError
from specbench.measure.local import device
from specbench.measure.local.device import KERNELS, Device, Mode, pick_device, pick_mode
from specbench.measure.local.engine_load import make_execution
from specbench.measure.local.engine_setup import EngineSetup, make_engine_setup
from specbench.measure.local.memory import MemoryLedger
from specbench.measure.spec import RunSpec
from specbench.measure.suite.preview import preview
from specbench.models.cards import known_models
from specbench.types import Completion, Step

GB = 10**9
LARGE: dict[str, Any] = {"model": "llama3-8b", "weights": "stand-in", "methods": ("eagle2",)}
"""About 17 GB in bfloat16."""
UNSAFE = next(
    name for name, card in known_models().items() if card.is_float16_unsafe and card.shape
)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """GPUs with this much free memory, in GB."""
    free: list[float] = []
    monkeypatch.setattr(device, "count_gpus", lambda torch: len(free))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda number: (int(free[number] * GB), 80 * GB)
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (9, 0))
    return free


def setup(**values: Any) -> EngineSetup:
    return make_engine_setup(RunSpec(**values), is_offline=True)


@pytest.mark.parametrize(
    ("given", "name", "problem"),
    [("auto", "cuda:0", ""), ("cuda", "cuda:0", ""), ("cuda:2", "cuda:2", ""), ("cpu", "cpu", ""),
     ("cuda:1-2", "cuda:1-2", ""), ("cuda:1-1", "cuda:1", ""),
     ("cuda:3", "", "there are 3 GPU"), ("cuda:0-3", "", "there are 3 GPU"),
     ("cuda:2-1", "", "not a device"), ("cuda:x", "", "not a device"),
     ("cuda:1-", "", "not a device"), ("cuda:-1", "", "not a device"), ("foo", "", "not a device")],
)  # fmt: skip
def test_a_device_with_missing_gpus_is_refused(
    gpus: list[float], given: str, name: str, problem: str
) -> None:
    gpus += [80, 80, 80]
    if name:
        assert pick_device(given).name == name
    else:
        with pytest.raises(UserError, match=f"--device {given} .*{problem}"):
            pick_device(given)


@pytest.mark.parametrize(
    ("capability", "model", "given", "dtype"),
    [
        ((7, 5), "llama3-8b", "auto", "float16"), ((7, 5), "llama3-8b", "bfloat16", "bfloat16"),
        ((8, 0), "llama3-8b", "auto", "bfloat16"), ((7, 5), "vicuna-7b", "auto", "float16"),
        ((7, 5), UNSAFE, "auto", "bfloat16"),
    ],
)  # fmt: skip
def test_a_gpu_that_emulates_bfloat16_runs_float16(
    gpus: list[float], monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], model: str,
    given: str, dtype: str,
) -> None:  # fmt: skip
    gpus += [80]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability)
    resolved = setup(**{**LARGE, "model": model}, dtype=given)
    assert resolved.dtype == dtype
    is_told = any("emulate bfloat16" in text for text in resolved.describe().warnings)
    assert is_told == (capability < (8, 0) and given == "auto" and model == "llama3-8b")


@pytest.mark.parametrize(
    ("capability", "kinds"),
    [((7, 5), ("torch",)), ((8, 9), ("torch", "plain")), ((9, 0), tuple(KERNELS))],
)
def test_kernels_that_a_gpu_cannot_run_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kinds: tuple[str, ...]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability)
    for kind in KERNELS:
        if kind in kinds:
            assert pick_mode("auto", Device("cuda:0"), kind) == Mode("graph", kernels=kind)
        else:
            message = f"--kernels {kind} needs .* on cuda:0 of compute capability {capability[0]}"
            with pytest.raises(UserError, match=message):
                pick_mode("auto", Device("cuda:0"), kind)
    with pytest.raises(UserError, match=r"--kernels plain needs .*, but this run is on cuda:0-1"):
        pick_mode("auto", Device("cuda:0-1"), "plain")


@pytest.mark.parametrize(
    ("device", "mode", "kernels", "ops"),
    [
        ("cpu", "eager", "auto", "native"), ("cpu", "eager", "plain", "native"),
        ("cpu", "eager", "torch", "torch"), ("cuda", "eager", "auto", "torch"),
        ("cuda", "eager", "plain", "plain"), ("cuda", "graph", "auto", "auto"),
        ("cuda", "graph", "torch", "torch"), ("cuda", "graph", "overlapped", "overlapped"),
        ("cuda", "eager", "overlapped", "overlapped"),
    ],
)  # fmt: skip
def test_kernels_and_graphs_are_separate_choices(
    device: str, mode: Literal["eager", "graph"], kernels: str, ops: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def named(name: str) -> Ops:
        operations = Ops()
        operations.name = name
        return operations

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(recorder, "CudaRecorder", lambda device: None)
    monkeypatch.setattr(pick_ops, "pick_ops", lambda device, dtype, kind: named(kind))
    monkeypatch.setattr(pick_ops, "pick_native_ops", lambda *given: named("native"))
    execution = make_execution(Mode(mode, kernels=kernels), torch.device(device), torch.float32)
    assert execution.ops.name == ops and execution.is_static == (mode == "graph")


@pytest.mark.parametrize(
    ("given", "free", "num"), [("auto", (12, 12, 12), 2), ("cuda", (12, 3, 12), 3)]
)
def test_a_model_larger_than_a_gpu_gets_several(
    gpus: list[float], given: str, free: tuple[float, ...], num: int
) -> None:
    """The search goes on after a GPU that is fuller than the first."""
    gpus += free
    resolved, name = setup(**LARGE, device=given), f"cuda:0-{num - 1}"
    assert (resolved.device.name, resolved.device.num_gpus) == (name, num)
    assert resolved.mode == Mode("eager", f"the model is spread over {num} GPUs")
    assert resolved.need is not None and resolved.need.draft_bytes > GB
    about = resolved.describe()
    assert about.values["device"] == name
    assert any(f"spread over {num} GPUs" in text for text in about.warnings)
    assert name in resolved.title
    with pytest.raises(UserError, match="--execution graph cannot be used: the model is spread"):
        setup(**LARGE, device=given, execution="graph")


def test_a_model_larger_than_all_gpus_is_reported_with_their_number(gpus: list[float]) -> None:
    gpus += [5, 5]
    with pytest.raises(TooLarge) as caught:
        setup(**LARGE)
    assert caught.value.message.endswith(" such GPUs are needed. There are 2.")
    with pytest.raises(TooLarge) as named:
        setup(**LARGE, device="cuda:1")
    assert "cuda:1 has 5.0 GB free" in named.value.message
    assert "There are" not in named.value.message


@pytest.mark.parametrize(("free", "is_enough"), [(12, True), (5, False)])
def test_a_preview_counts_all_gpus(gpus: list[float], free: float, is_enough: bool) -> None:
    gpus += [free, free]
    spec = RunSpec(**LARGE, tasks=("gsm8k",), limit=1)
    missing = " ".join(preview(spec, lambda device: 1e12).missing)
    assert ("such GPUs are needed. There are 2." in missing) is not is_enough


CACHE, LEAST = 100, 1100
"""The bytes of the cache, and of the target with its cache."""
DONE = Completion((1, 2), "budget", (Step(1, 1),), 0.1, 0.2)


class FakeGpu:
    """A device with a target, its cache, and a small and a large drafter, as allocated bytes.

    `used` are bytes of recordings.
    """

    def __init__(self) -> None:
        self.allocated = self.peak = LEAST
        self.buffer_bytes = self.used = 0
        self.cache = SimpleNamespace(capacity=CACHE, bytes_per_token=1)
        cuda = torch.device("cuda")
        on_it = {"device": cuda, "devices": (cuda,), "cache": self.cache, "execution": self}
        self.ledger = MemoryLedger(SimpleNamespace(**on_it))  # type: ignore[arg-type]

    def take(self, num_bytes: int) -> None:
        self.allocated += num_bytes
        self.peak = max(self.peak, self.allocated)

    def reset_peak(self, device: object) -> None:
        self.peak = self.allocated

    def used_bytes(self) -> int:
        used, self.used = self.used, 0
        return used

    def peak_of(
        self, label: str, *, work: int = 0, kept: int = 0, cached: int = 0, recorded: int = 0,
        used: int = 0,
    ) -> int | None:  # fmt: skip
        """The peak of a completion that frees `work` at its end, and keeps the other bytes."""

        def complete() -> Completion:
            self.take(kept + cached + recorded + work)
            self.take(-work)
            self.cache.capacity += cached
            self.buffer_bytes += recorded
            self.used += used
            return DONE

        return self.ledger.measure(label, complete).peak_memory_bytes


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: fake.allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: fake.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", fake.reset_peak)
    for label, num_bytes in (("small", 10), ("large", 500)):
        with fake.ledger.holder(label):
            fake.take(num_bytes)
    return fake


def test_a_peak_leaves_out_other_methods_memory(gpu: FakeGpu) -> None:
    """A drafter's cache counts only for its method, and the target's for every method."""
    assert gpu.peak_of("small", work=7) == LEAST + 10 + 7
    assert gpu.peak_of("large", kept=40) == LEAST + 540
    assert gpu.peak_of("small") == LEAST + 10
    assert gpu.peak_of("large", cached=60) == LEAST + 60 + 540
    assert gpu.peak_of("small") == LEAST + 60 + 10


def test_recordings_count_for_the_methods_that_replay_them(gpu: FakeGpu) -> None:
    assert gpu.peak_of("large", recorded=80, used=80 + 9) == LEAST + 500 + 89  # with scratch memory
    assert gpu.peak_of("small", used=30 + 4) == LEAST + 10 + 34
    gpu.used = 80  # by another method in between
    assert gpu.peak_of("small") == LEAST + 10
