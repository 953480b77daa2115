"""Replayed steps equal eager steps: padding, buckets, every method."""

from __future__ import annotations

from copy import deepcopy
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specbench.engine.decode import decode
from specbench.engine.graphs import cuda as graphs
from specbench.engine.graphs.cuda import Graphs, bucket, buckets
from specbench.engine.graphs.recorder import CudaRecorder
from specbench.engine.kernels.pick_ops import pick_ops
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.registry import names
from specbench.types import Request, Sampling
from tests.support.fallbacks import fallbacks
from tests.support.models import prompts, random_llama
from tests.support.products import each_once
from tests.support.tracing import TraceRecorder
from tests.support.weights import build

SAMPLINGS = [Sampling(), Sampling(1.0)]
picked = cache(pick_ops)  # the start-up check takes seconds


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    monkeypatch.setattr(graphs, "BUCKET", 16)  # so that completions cross several
    return Graphs(TraceRecorder())


@pytest.mark.parametrize(("name", "sampling"), each_once(names(), SAMPLINGS), ids=str)
def test_replayed_steps_give_the_tokens_of_eager_ones_in_every_bucket(
    name: str, sampling: Sampling, recorded: Graphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = set()

    def noted(num_rows: int) -> int:
        reached.add(bucket(num_rows))
        return bucket(num_rows)

    monkeypatch.setattr(graphs, "bucket", noted)
    model = random_llama()
    eager, graph = Target(deepcopy(model)), Target(model, recorded)
    drafters = [build(name, target, tmp_path) for target in (eager, graph)]
    for seed, prompt in enumerate(prompts()[::2]):  # a short and a long one
        request = Request(prompt, 40, sampling, seed=seed)
        plain, replayed = (
            decode(target, drafter, request)
            for target, drafter in zip((eager, graph), drafters, strict=True)
        )
        assert replayed.token_ids == plain.token_ids
        assert replayed.steps == plain.steps
    assert recorded.failures == set()
    assert len(reached) >= 2 and reached <= {32, 48, 80, 144, 272}


def test_buckets_grow_to_less_than_twice_the_last_and_have_room_for_a_tree() -> None:
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

    made = [recorder(partial(of, i), ()) for i in range(24)]
    held = torch.cuda.memory_reserved(device) - before
    assert held < 2 * 24 * 2 * x.nbytes  # outputs, and not the scratch memory of each
    x.copy_(torch.rand(x.shape, device=device))
    for recording in reversed(made):
        recording.replay()
    for i, recording in enumerate(made):
        torch.testing.assert_close(recording.outputs, of(i))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", names())
def test_cuda_graphs_give_the_tokens_of_eager_steps(
    name: str, sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "BUCKET", 64)
    device, dtype = torch.device("cuda:0"), torch.float32
    model = random_llama(layers=8, hidden_size=128).to(device, dtype)
    replaying = Graphs(CudaRecorder(device), picked(device, dtype))
    targets = Target(deepcopy(model)), Target(model, replaying)
    drafters = [build(name, target, tmp_path) for target in targets]
    for seed, prompt in enumerate(prompts()):
        plain, replayed = (
            decode(target, drafter, Request(prompt, 40, sampling, seed=seed))
            for target, drafter in zip(targets, drafters, strict=True)
        )
        assert replayed.token_ids == plain.token_ids
        assert replayed.steps == plain.steps
    assert fallbacks(targets[1]) == []


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
        assert (
            summed(torch.full((10, 4), 2.0), cache_span=CacheSpan(size))[0].tolist()
            == [2.0 * size] * 4
        )
        assert summed(x, cache_span=CacheSpan(size))[0].tolist() == [size] * 4
    assert recorded.num_recordings == 10
    assert recorded.used_bytes() == recorded.buffer_bytes
    assert recorded.used_bytes() == 0


def test_a_tensor_that_is_given_again_is_read_again_whatever_lay_there_in_between(
    recorded: Graphs,
) -> None:
    double, add = recorded.wrap(lambda x: (2 * x,)), recorded.wrap(lambda x: (x + 1,))
    given = torch.tensor([100.0])
    assert add(*double(torch.tensor([1.0])))[0].item() == 3
    assert add(given)[0].item() == 101
    assert add(*double(torch.tensor([5.0])))[0].item() == 11
    assert add(given)[0].item() == 101


def test_outputs_stay_until_the_next_call(recorded: Graphs) -> None:
    double, add = recorded.wrap(lambda x: (2 * x,)), recorded.wrap(lambda x: (x + 1,))
    (doubled,) = double(torch.tensor([1.0]))
    add(doubled)
    add(torch.tensor([7.0]))
    assert doubled.item() == 2


def test_a_part_of_an_output_is_read_again_when_it_is_given_again(recorded: Graphs) -> None:
    double, add = recorded.wrap(lambda x: (2 * x,)), recorded.wrap(lambda x: (x + 1,))
    (doubled,) = double(torch.tensor([1.0, 2.0]))
    last = doubled[1:]
    assert add(last)[0].item() == 5
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
def test_a_cache_that_grows_is_recorded_anew(recorded: Graphs) -> None:
    target, plain = Target(random_llama(), recorded), Target(random_llama())
    for prompt in (prompts()[0], prompts()[2] * 8, prompts()[0]):
        for one in (target, plain):
            one.prefill(prompt)
        tree = DraftTree.chain(torch.tensor([5, 6]))
        torch.testing.assert_close(target.forward(tree).logits, plain.forward(tree).logits)
