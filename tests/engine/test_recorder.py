"""Captures with a fake of CUDA's calls: what they change is restored, also after a failure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.graphs.recorder import CudaRecorder

X = torch.arange(4.0)


class FakeCuda:
    """Torch's calls for captures on a CPU. A stream and a pool of a failed capture stay broken."""

    def __init__(self) -> None:
        self.mode, self.has_warned, self.can_capture = 0, False, True
        self.numbers, self.broken = count(1), set[int]()
        self.is_capturing = False

    def set_sync_debug_mode(self, mode: int | str) -> None:
        self.mode = {"error": 2}.get(str(mode), 0)  # torch sets it, then raises what it buffered
        if not self.has_warned:
            self.has_warned = True
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    @contextmanager
    def graph(self, graph: Any, pool: Any, stream: Any) -> Iterator[None]:
        graph.number = pool or next(self.numbers)
        if not self.can_capture or {stream.number, graph.number} & self.broken:
            raise RuntimeError("operation not permitted")
        self.is_capturing = True
        try:
            yield
        except Exception:
            self.broken |= {stream.number, graph.number}
            raise
        finally:
            self.is_capturing = False


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()

    def stream(device: torch.device) -> Any:
        return SimpleNamespace(
            device=device, number=next(fake.numbers), wait_stream=lambda other: None
        )

    def graph() -> Any:
        made = SimpleNamespace(replay=lambda: None, number=0)
        made.pool = lambda: made.number
        return made

    calls = {
        "Stream": stream, "current_stream": stream, "stream": lambda s: nullcontext(),
        "set_stream": lambda s: None, "synchronize": lambda d: None, "CUDAGraph": graph,
        "memory_allocated": lambda d: 0, "max_memory_allocated": lambda d: 0,
        "reset_peak_memory_stats": lambda d: None, "get_sync_debug_mode": lambda: fake.mode,
        "set_sync_debug_mode": fake.set_sync_debug_mode, "graph": fake.graph,
    }  # fmt: skip
    for name, call in calls.items():
        monkeypatch.setattr(torch.cuda, name, call)
    return fake


def recorder() -> CudaRecorder:
    return CudaRecorder(torch.device("cpu"))


def test_torchs_warning_of_a_prototype_is_no_error_and_the_mode_is_restored(cuda: FakeCuda) -> None:
    modes = []

    def function() -> tuple[Tensor, ...]:
        modes.append(cuda.mode)
        return (X + 1,)

    recorder()(function, ())
    assert modes == [0, 2, 0] and cuda.has_warned  # a first call, the watched one, the capture
    assert cuda.mode == 0


def test_the_mode_is_restored_after_a_function_that_waits(cuda: FakeCuda) -> None:
    def function() -> tuple[Tensor, ...]:
        if cuda.mode == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        return (X,)

    record = recorder()
    with pytest.raises(RuntimeError, match="synchronizing"):
        record(function, ())
    assert cuda.mode == 0
    assert record(lambda: (X + 2,), ()).outputs[0].tolist() == [2, 3, 4, 5]


def test_a_failed_capture_leaves_the_process_able_to_capture(cuda: FakeCuda) -> None:
    def function() -> tuple[Tensor, ...]:
        if cuda.is_capturing:
            raise ValueError("not in a capture")
        return (X,)

    record = recorder()
    record(lambda: (X,), ())
    with pytest.raises(ValueError, match="not in a capture"):
        record(function, ())
    assert record(lambda: (X + 2,), ()).outputs[0].tolist() == [2, 3, 4, 5]
    assert recorder()(lambda: (X,), ()).outputs[0].tolist() == X.tolist()


def test_where_no_capture_works_after_a_failed_one_the_first_reason_is_told(cuda: FakeCuda) -> None:
    def function() -> tuple[Tensor, ...]:
        if cuda.is_capturing:
            cuda.can_capture = False
            raise ValueError("the driver is lost")
        return (X,)

    record = recorder()
    with pytest.raises(ValueError, match="the driver is lost"):
        record(function, ())
    with pytest.raises(RuntimeError, match="an earlier recording failed: the driver is lost"):
        record(lambda: (X,), ())
