"""The phases of a step, measured with fake clocks.

NaN or infinite logits end a completion with an error that names the step.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.engine import clock
from specbench.engine.accept import Verdict, accept_path, lossless
from specbench.engine.clock import EventStopwatch, HostStopwatch, phase_stopwatch
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.execution import Execution
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.errors import NonFiniteError
from specbench.methods.shared.checkpoint import Checkpoint
from specbench.registry import get
from specbench.types import Phases, Request, Sampling
from tests.support.models import prompts, random_llama, random_target
from tests.support.recorders import rerun
from tests.support.weights import WEIGHTS, build


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The readings of a clock that advances by a second per reading."""
    seen: list[float] = []
    seconds = itertools.count()

    def read() -> float:
        seen.append(float(next(seconds)))
        return seen[-1]

    monkeypatch.setattr(time, "perf_counter", read)
    return seen


REQUEST = Request(prompts()[3], 20)


def test_every_phase_of_every_step_is_timed_once(readings: list[float]) -> None:
    target = random_target()
    done = decode(target, build("pld", target, Path()), REQUEST, stopwatch=HostStopwatch())
    steps = float(len(done.steps))
    # The first draft begins before the reading of the clock that ends the drafter's prefill.
    assert done.phases == Phases(steps + 1, steps, steps, steps)
    # The first lap begins at the prefill's end, and the last ends at the second-to-last reading.
    assert done.decode_s == sum(astuple(done.phases)) + 2


def test_a_run_without_phases_reads_the_clock_four_times(
    readings: list[float],
) -> None:
    target = random_target()
    assert decode(target, build("pld", target, Path()), REQUEST).phases is None
    assert len(readings) == 4  # begin, prefill, the drafter's prefill, end


def test_a_stopwatch_forgets_the_previous_completion() -> None:
    target, watch = random_target(), HostStopwatch()
    drafter = build("vanilla", target, Path())
    long = decode(target, drafter, Request(prompts()[1], 40), stopwatch=watch)
    short = decode(target, drafter, Request(prompts()[1], 1), stopwatch=watch)
    assert long.phases is not None
    assert min(astuple(long.phases)) > 0
    assert short.phases == Phases(0.0, 0.0, 0.0, 0.0)


def test_on_a_gpu_a_phase_is_the_time_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    times_ms = (2.0**number for number in itertools.count())

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            self.at_ms = next(times_ms)

        def elapsed_time(self, later: Event) -> float:
            return later.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    watch = phase_stopwatch(torch.device("cuda"))
    assert isinstance(watch, EventStopwatch)
    watch.start()
    for phase in (*clock.PHASES, "draft"):
        watch.lap(phase)
    assert watch.read() == Phases(0.001 + 0.016, 0.002, 0.004, 0.008)


PROMPT = (1, 5, 9, 12, 7)
EXECUTIONS: list[Callable[[], Execution]] = [Execution, lambda: Graphs(rerun)]
SAMPLINGS = [Sampling(), Sampling(temperature=1.0)]


@pytest.mark.parametrize(
    ("value", "at", "execution", "sampling"),
    [
        (math.nan, "model.layers.1.mlp.down_proj.weight", EXECUTIONS[0], SAMPLINGS[0]),
        (math.inf, "model.layers.0.self_attn.o_proj.weight", EXECUTIONS[1], SAMPLINGS[1]),
        (math.nan, "lm_head.weight", EXECUTIONS[1], SAMPLINGS[0]),
    ],
)
def test_a_target_whose_logits_are_not_finite_fails_in_the_prefill(
    value: float, at: str, execution: Callable[[], Execution], sampling: Sampling
) -> None:
    model = random_llama()
    with torch.no_grad():
        model.get_parameter(at).view(-1)[0] = value
    target = Target(model, execution())
    with pytest.raises(NonFiniteError, match="target's logits are NaN or infinite in the prefill"):
        decode(target, build("vanilla", target, Path()), Request(PROMPT, 8, sampling))


def test_a_later_step_is_named_with_the_tokens_before_it(tmp_path: Path) -> None:
    target = random_target()
    forward, calls = target.forward, []

    def overflowing(tree: DraftTree) -> object:
        calls.append(tree)
        result = forward(tree)
        if len(calls) == 3:
            result.logits[0, 4] = math.inf
        return result

    target.forward = overflowing  # type: ignore[method-assign, assignment]
    with pytest.raises(NonFiniteError, match="in step 3, after 3 tokens"):
        decode(target, build("vanilla", target, tmp_path), Request(PROMPT, 8))


@pytest.mark.parametrize(
    ("name", "execution", "sampling"),
    [
        (name, EXECUTIONS[place % 2], SAMPLINGS[place // 2 % 2])
        for place, name in enumerate(["sps", "medusa", "hydra", "eagle", "eagle2", "eagle3"])
    ],
)
def test_a_draft_whose_scores_are_nan_fails_in_its_first_step(
    name: str, sampling: Sampling, execution: Callable[[], Execution], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A head with such weights is refused when it is read, so its weights change after that."""
    target, method = Target(random_llama(layers=8), execution()), get(name)
    assert method.weights
    folder = WEIGHTS[method.weights](target, tmp_path / name)
    if name == "sps":
        path = folder / "model.safetensors"
        damaged = {key: nan_like(x) for key, x in load_file(path).items()}
        save_file(damaged, path, metadata={"format": "pt"})
    take = Checkpoint.take
    monkeypatch.setattr(Checkpoint, "take", lambda *a, **named: nan_like(take(*a, **named)))
    drafter = method.build(method.options(), BuildContext(target, folder))
    with pytest.raises(NonFiniteError, match="draft's scores are NaN or infinite in step 1"):
        decode(target, drafter, Request(PROMPT, 30, sampling))


def nan_like(x: Tensor) -> Tensor:
    return torch.full_like(x, math.nan) if x.is_floating_point() else x


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_rejected_node_may_overflow_and_masked_tokens_may_be_minus_infinity(
    execution: Callable[[], Execution],
) -> None:
    logits = torch.zeros(3, 10)
    logits[:, 7] = 1.0
    logits[:, 3] = -math.inf
    logits[2] = math.nan  # of a draft token that is rejected
    tree = DraftTree.chain(torch.tensor([4, 7, 8]))
    sampler = Sampler(Sampling(), torch.device("cpu"))
    chosen = accept_path(lossless, tree, logits, sampler, execution())
    assert Verdict.read(chosen).token_ids == (7, 7)
