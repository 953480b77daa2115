"""Steps of models that run transformers' own forward, replayed as graphs.

Captures with a fake of CUDA's calls: what they change is restored, also after a failure.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from specbench.engine.decode import decode
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.graphs.recorder import CudaRecorder
from specbench.engine.layers.models import is_known
from specbench.engine.load import load_target
from specbench.engine.target import Needs, Target
from specbench.engine.tree import DraftTree
from specbench.types import Request
from tests.engine.test_target import Oracle
from tests.support.architectures import FULL, LIMITED, config_of, random_of
from tests.support.fake_cuda import CheckedGraphs
from tests.support.models import save
from tests.support.recorders import rerun
from tests.support.tracing import TraceRecorder

PROMPT = (1, 7, 8, 9, 10, 11)
UNFUSED = [
    name
    for name in (*FULL, *LIMITED)
    if name in CONFIG_MAPPING and not is_known(random_of(config_of(name)))
]
EAGER = {"falcon", "phimoe"}
"""Model types whose code copies from the host, which a capture on a GPU refuses."""


@pytest.mark.parametrize("name", UNFUSED)
def test_the_step_of_a_model_can_be_captured(name: str) -> None:
    checked = CheckedGraphs(rerun)
    target = Target(random_of(config_of(name)).to(torch.bfloat16), checked)
    decode(target, Oracle([]), Request(PROMPT, 4))
    assert checked.num_checked >= 1
    assert bool(checked.refused) == (name in EAGER), checked.refused


@torch.inference_mode()
def test_replayed_steps_give_what_a_drafter_reads() -> None:
    model, needs = random_of(config_of("glm4")), Needs(hidden=True, layer_inputs=(1, 2))
    plain, replaying = Target(model), Target(model, Graphs(TraceRecorder()))
    found = []
    for target in (plain, replaying):
        with target.capture(needs):
            for length in (3, 6):
                target.prefill(PROMPT[:length])
                out = target.forward(DraftTree.chain(torch.tensor([5, 9])))
        assert out.hidden is not None
        found.append((out.logits, out.hidden, out.layer_inputs[1], out.layer_inputs[2]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_a_step_that_reads_the_number_of_tokens_runs_eagerly_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(target: Target, *given: Any, **named: Any) -> Any:
        out = forward(target, *given, **named)
        return replace(out, logits=out.logits * target.cache.length)

    forward = Target._run_model
    monkeypatch.setattr(Target, "_run_model", scaled)
    folder = save(random_of(config_of("glm4")), tmp_path)
    target = load(folder)
    assert "logits in a graph differ from those of the same step by itself" in str(
        target.eager_reason
    )
    monkeypatch.undo()
    target = load(folder)
    assert target.eager_reason is None
    assert target.cache.length == 0


def test_a_step_that_cannot_be_captured_runs_eagerly_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Target._run_model

    def reads(target: Target, *given: Any, **named: Any) -> Any:
        out = forward(target, *given, **named)
        return replace(out, logits=out.logits * (1 + 0 * out.logits.max().item()))

    monkeypatch.setattr(Target, "_run_model", reads)
    target = load(save(random_of(config_of("glm4")), tmp_path))
    assert "_tree_step" in str(target.eager_reason)
    answer = list(decode(Target(target.model), Oracle([]), Request(PROMPT, 8)).token_ids)
    assert list(decode(target, Oracle(answer), Request(PROMPT, 8)).token_ids) == answer


def load(folder: Path) -> Target:
    return load_target(
        folder, dtype=torch.float32, device=torch.device("cpu"),
        execution=Graphs(TraceRecorder()),
    )  # fmt: skip


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
