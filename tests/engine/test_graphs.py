"""Replayed steps equal eager steps, with padding, in all buckets and for every method.

Models that run transformers' own forward are replayed, too. Captured functions neither copy from
the host nor wait for the device.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.buckets import bucket, buckets
from specbench.engine.decode import decode
from specbench.engine.graphs import cuda as graphs
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.graphs.recorder import CudaRecorder
from specbench.engine.kernels.pick_ops import pick_ops
from specbench.engine.layers import experts
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.target import Needs, Target
from specbench.engine.tree import DraftTree
from specbench.registry import names
from specbench.types import Request, Sampling
from tests.engine.test_target import PROMPT, Oracle, load_in, random_model
from tests.support.architectures import config_of, random_of
from tests.support.fake_cuda import CheckedGraphs, refusals
from tests.support.fallbacks import fallbacks
from tests.support.models import prompts, random_llama, save
from tests.support.products import each_once
from tests.support.recorders import rerun
from tests.support.tracing import TraceRecorder
from tests.support.weights import decoded

SAMPLINGS = [Sampling(), Sampling(1.0)]
WINDOWED = ["mistral, window", "qwen3, windows", "gemma2", "gemma3", "gemma3, images", "gpt-oss"]
picked = cache(pick_ops)  # the start-up check takes seconds


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> CheckedGraphs:
    monkeypatch.setattr("specbench.engine.buckets.BUCKET", 16)  # so that a completion needs several
    return CheckedGraphs(TraceRecorder())


@pytest.mark.parametrize(
    ("name", "sampling", "maker_args", "options"),
    [
        *each_once(names(), SAMPLINGS, [{}], [{}]),
        ("hydra", Sampling(), {"arch": "prefix-mlp"}, {}),
        pytest.param("eagle2", Sampling(), {}, {"top_k": 1}, marks=pytest.mark.slow),
        ("medusa", Sampling(1.0), {}, {"acceptance": "typical"}),
        pytest.param("eagle", Sampling(0.7, top_p=0.9, top_k=20), {}, {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_replayed_steps_give_the_tokens_of_eager_ones_in_every_bucket_and_can_be_captured(
    name: str, sampling: Sampling, maker_args: Any, options: Any, recorded: CheckedGraphs,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    reached = set()

    def noted(num_rows: int) -> int:
        reached.add(bucket(num_rows))
        return bucket(num_rows)

    monkeypatch.setattr(graphs, "bucket", noted)
    some = prompts()[::2]  # a short and a long one
    requests = [Request(prompt, 40, sampling, seed=seed) for seed, prompt in enumerate(some)]
    targets = Target(random_llama()), Target(random_llama(), recorded)
    plain, replayed = (
        decoded(target, name, tmp_path, requests, maker_args, **options) for target in targets
    )
    assert replayed == plain and recorded.num_checked >= 2
    assert (recorded.failures, recorded.refused) == (set(), set())
    assert len(reached) >= 2 and reached <= {32, 48, 80, 144, 272}


@pytest.mark.parametrize("name", WINDOWED)
def test_replayed_steps_of_models_with_limited_attention_give_the_tokens_of_eager_ones(
    name: str, recorded: CheckedGraphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "_one_by_one", experts._gathered)  # as on a GPU
    requests, model = [Request(prompts()[1], 30)], random_model(name)
    targets = Target(deepcopy(model)), Target(model, recorded)
    plain, replayed = (decoded(target, "eagle2", tmp_path, requests) for target in targets)
    assert replayed == plain and recorded.num_checked >= 2
    assert (recorded.failures, recorded.refused) == (set(), set())


def test_each_bucket_is_less_than_twice_the_last() -> None:
    assert buckets(2048 + 160) == [512, 768, 1280, 2304]
    assert buckets(32768 + 160)[-1] == 33024 and len(buckets(32768 + 160)) == 8
    for num_rows in (1, 511, 512, 513, 2304, 2305, 100_000):
        size = bucket(num_rows)
        assert num_rows <= size < max(2 * num_rows, 513)
        assert buckets(num_rows)[-1] == size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_recordings_share_scratch_memory_and_are_replayed_in_any_order() -> None:
    device = torch.device("cuda:0")
    recorder, x = CudaRecorder(device), torch.zeros(1 << 20, device=device)
    before = torch.cuda.memory_reserved(device)

    def of(i: int) -> tuple[Tensor, ...]:
        return (x + i).sin().cos(), (x * i).exp()

    recordings = [recorder(partial(of, i), ()) for i in range(24)]
    held = torch.cuda.memory_reserved(device) - before
    assert held < 2 * 24 * 2 * x.nbytes  # only the outputs of each, not its scratch memory
    x.copy_(torch.rand(x.shape, device=device))
    for recording in reversed(recordings):
        recording.replay()
    for i, recording in enumerate(recordings):
        torch.testing.assert_close(recording.outputs, of(i))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", names())
def test_cuda_graphs_give_the_tokens_of_eager_steps(
    name: str, sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.engine.buckets.BUCKET", 64)
    device, dtype = torch.device("cuda:0"), torch.float32
    model = random_llama(layers=8, hidden_size=128).to(device, dtype)
    replaying = Graphs(CudaRecorder(device), picked(device, dtype))
    requests = [Request(prompt, 40, sampling, seed=i) for i, prompt in enumerate(prompts())]
    targets = Target(deepcopy(model)), Target(model, replaying)
    plain, replayed = (decoded(target, name, tmp_path, requests) for target in targets)
    assert replayed == plain and fallbacks(targets[1]) == []


def test_recordings_of_every_bucket_share_the_memory_of_inputs_and_outputs(
    recorded: Graphs,
) -> None:
    def part(x: Tensor, *, cache_span: CacheSpan) -> tuple[Tensor, ...]:
        return (x[: cache_span.num_rows].sum(0),)

    summed, x = recorded.wrap(part), torch.ones(10, 4)
    outputs = [summed(x, cache_span=CacheSpan(size))[0] for size in range(1, 11)]
    assert recorded.num_recordings == 10
    assert len({output.data_ptr() for output in outputs}) == 1
    assert recorded.buffer_bytes == x.nbytes + outputs[0].nbytes
    for size in (3, 7, 3):
        for factor in (2.0, 1.0):
            given = torch.full((10, 4), 2.0) if factor == 2 else x
            sums = summed(given, cache_span=CacheSpan(size))[0].tolist()
            assert sums == [factor * size] * 4
    assert recorded.num_recordings == 10
    assert recorded.used_bytes() == recorded.buffer_bytes
    assert recorded.used_bytes() == 0


def test_a_repeated_input_is_copied_again(
    recorded: Graphs,
) -> None:
    double, add = recorded.wrap(lambda x: (2 * x,)), recorded.wrap(lambda x: (x + 1,))
    given = torch.tensor([100.0])
    assert add(*double(torch.tensor([1.0])))[0].item() == 3
    assert add(given)[0].item() == 101
    assert add(*double(torch.tensor([5.0])))[0].item() == 11
    assert add(given)[0].item() == 101


def test_an_output_is_valid_until_the_next_call(
    recorded: Graphs,
) -> None:
    double, add = recorded.wrap(lambda x: (2 * x,)), recorded.wrap(lambda x: (x + 1,))
    (doubled,) = double(torch.tensor([1.0, 2.0]))
    last = doubled[1:]
    assert add(last)[0].item() == 5
    add(doubled)
    add(torch.tensor([7.0, 7.0]))
    assert doubled.tolist() == [2, 4]
    double(torch.tensor([1.0, 4.0]))
    assert add(last)[0].item() == 9


def test_a_function_that_cannot_be_recorded_runs_eagerly_with_a_reason(recorded: Graphs) -> None:
    def reads(x: Tensor) -> tuple[Tensor, ...]:
        return (x + x.max().item(),)

    captured = recorded.wrap(reads)
    assert captured(torch.tensor([1.0, 2.0]))[0].tolist() == [3.0, 4.0]
    assert captured(torch.tensor([1.0, 5.0]))[0].tolist() == [6.0, 10.0]
    (failure,) = recorded.failures
    assert "reads" in failure


@torch.inference_mode()
def test_a_grown_cache_is_recorded_again(recorded: Graphs) -> None:
    target, plain = Target(random_llama(), recorded), Target(random_llama())
    for prompt in (prompts()[0], prompts()[2] * 8, prompts()[0]):
        for model in (target, plain):
            model.prefill(prompt)
        tree = DraftTree.chain(torch.tensor([5, 6]))
        torch.testing.assert_close(target.forward(tree).logits, plain.forward(tree).logits)


@torch.inference_mode()
def test_replayed_steps_give_what_a_drafter_reads() -> None:
    model, needs = random_of(config_of("glm4")), Needs(hidden=True, layer_inputs=(1, 2))
    plain, replaying = Target(model), Target(model, Graphs(TraceRecorder()))
    outputs = []
    for target in (plain, replaying):
        with target.capture(needs):
            for length in (3, 6):
                target.prefill(PROMPT[:length])
                out = target.forward(DraftTree.chain(torch.tensor([5, 9])))
        assert out.hidden is not None
        outputs.append((out.logits, out.hidden, out.layer_inputs[1], out.layer_inputs[2]))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (lambda target, logits: target.cache.length, "logits in a graph differ from those of"),
        (lambda target, logits: 1 + 0 * logits.max().item(), "_tree_step"),
    ],
    ids=["it reads the number of tokens", "it reads a value"],
)
def test_a_step_that_cannot_be_replayed_runs_eagerly_with_the_reason(
    factor: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(target: Target, *given: Any, **named: Any) -> Any:
        out = forward(target, *given, **named)
        return replace(out, logits=out.logits * factor(target, out.logits))

    forward = Target._run_model
    monkeypatch.setattr(Target, "_run_model", scaled)
    folder = save(random_of(config_of("glm4")), tmp_path)
    target = load_in(folder, execution=Graphs(TraceRecorder()))
    assert reason in str(target.eager_reason)
    answer = list(decode(Target(target.model), Oracle([]), Request(PROMPT, 8)).token_ids)
    assert list(decode(target, Oracle(answer), Request(PROMPT, 8)).token_ids) == answer
    monkeypatch.undo()
    target = load_in(folder, execution=Graphs(TraceRecorder()))
    assert target.eager_reason is None
    assert target.cache.length == 0


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
        graph = SimpleNamespace(replay=lambda: None, number=0)
        graph.pool = lambda: graph.number
        return graph

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


def test_torchs_prototype_warning_is_not_an_error(cuda: FakeCuda) -> None:
    modes = []

    def function() -> tuple[Tensor, ...]:
        modes.append(cuda.mode)
        return (X + 1,)

    recorder()(function, ())
    assert modes == [0, 2, 0] and cuda.has_warned  # the first, the watched, the captured call
    assert cuda.mode == 0


@pytest.mark.parametrize("place", ["watched", "captured"])
def test_other_recordings_work_after_a_failed_one(place: str, cuda: FakeCuda) -> None:
    def function() -> tuple[Tensor, ...]:
        if cuda.is_capturing if place == "captured" else cuda.mode == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        return (X,)

    record = recorder()
    record(lambda: (X,), ())
    with pytest.raises(RuntimeError, match="synchronizing"):
        record(function, ())
    assert cuda.mode == 0
    assert record(lambda: (X + 2,), ()).outputs[0].tolist() == [2, 3, 4, 5]
    assert recorder()(lambda: (X,), ()).outputs[0].tolist() == X.tolist()


def test_the_reason_of_the_first_failed_capture_is_reported(
    cuda: FakeCuda,
) -> None:
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


@pytest.mark.parametrize(
    ("name", "dtype", "capability"),
    [("vanilla", torch.float32, (9, 0)), ("eagle2", torch.float32, (8, 9))]
    + [("eagle2", torch.bfloat16, capability) for capability in ((8, 0), (9, 0))],
    ids=str,
)
def test_a_mixture_of_experts_can_be_captured(
    name: str, dtype: torch.dtype, capability: tuple[int, int], tmp_path: Path
) -> None:
    checked = CheckedGraphs(rerun, capability=capability)
    target = Target(random_model("mixtral").to(dtype), checked)
    decoded(target, name, tmp_path, [Request(prompts()[3], 8)])
    assert (checked.failures, checked.refused) == (set(), set()) and checked.num_checked >= 2


@pytest.mark.parametrize(
    "planted",
    [
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x + torch.ones(3, device="cpu"),
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x[[0, 1]],
        lambda x: x.nonzero(),
        lambda x: torch.rand(3, device=x.device),
    ],
)
def test_operations_that_a_capture_refuses_are_found(planted: Callable[[Tensor], object]) -> None:
    (refused,) = refusals(planted, (torch.ones(3),))
    assert refused.startswith("test_graphs.py:")
