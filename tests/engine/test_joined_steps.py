"""One recording runs a whole step: it verifies a tree, accepts a path and commits it.

If something has to run between these parts, each part has its own recording. The tokens are the
same.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from specbench.engine.accept import lossless
from specbench.engine.clock import HostStopwatch
from specbench.engine.decode import decode
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.graphs.recorder import Recording
from specbench.engine.layers import experts
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.registry import names
from specbench.types import Completion, Request, Sampling
from tests.engine.test_prompts import FUSED, UNFUSED
from tests.engine.test_target import random_model
from tests.support.architectures import config_of, random_of
from tests.support.fake_cuda import CheckedGraphs
from tests.support.models import prompts, random_llama
from tests.support.products import each_once
from tests.support.recorders import rerun
from tests.support.tracing import TraceRecorder
from tests.support.weights import build

SAMPLINGS = [Sampling(), Sampling(1.0)]


class Counting:
    """A `TraceRecorder` that counts the replays."""

    def __init__(self) -> None:
        self.num_replays = 0
        self._record = TraceRecorder()

    def __call__(self, *given: Any) -> Recording:
        recording = self._record(*given)

        def replay() -> None:
            self.num_replays += 1
            recording.replay()

        return replace(recording, replay=replay)


def completed(
    target: Target, name: str, folder: Path, sampling: Sampling, **options: Any
) -> list[Completion]:
    """Two completions with a drafter. `options` go to the loop."""
    drafter = build(name, target, folder)
    requests = [Request(prompt, 30, sampling, seed=3) for prompt in prompts()[:2]]
    return [decode(target, drafter, request, **options) for request in requests]


def recorded_functions(graphs: Graphs) -> set[str]:
    """The names of functions that have recordings."""
    return {
        captured.function.__name__
        for captured in graphs._captured.values()
        if any(not isinstance(entry, str) for entry in captured.entries.values())
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sampling"), each_once(names(), SAMPLINGS), ids=str)
def test_a_step_in_parts_gives_the_tokens_of_a_whole_one(
    name: str, sampling: Sampling, tmp_path: Path
) -> None:
    model = random_llama(layers=8)
    joined, in_parts = Graphs(TraceRecorder()), CheckedGraphs(TraceRecorder())
    answers = [
        [(done.token_ids, done.steps) for done in completions]
        for completions in (
            completed(Target(model), name, tmp_path, sampling),
            completed(Target(model, joined), name, tmp_path, sampling),
            completed(Target(model, in_parts), name, tmp_path, sampling, stopwatch=HostStopwatch()),
            completed(Target(model, in_parts), name, tmp_path, sampling, is_traced=True),
        )
    ]
    assert all(answer == answers[0] for answer in answers)
    assert joined.failures | in_parts.failures | in_parts.refused == set()
    assert "_step_then" in recorded_functions(joined)
    parts = recorded_functions(in_parts)
    assert {"_tree_step", "choose"} <= parts
    assert ("_step_then" in parts) == (name in ("sps", "layerskip"))  # they draft in steps


@pytest.mark.parametrize(
    ("architecture", "sampling"), each_once([*FUSED, *UNFUSED], SAMPLINGS), ids=str
)
def test_whole_steps_with_windows_caps_and_experts_give_the_tokens_of_eager_ones(
    architecture: str, sampling: Sampling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "_one_by_one", experts._gathered)  # as on a GPU
    is_fused = architecture in FUSED
    model = random_model(architecture) if is_fused else random_of(config_of(architecture))
    graphs = Graphs(TraceRecorder())
    targets = Target(deepcopy(model)), Target(model, graphs)
    answers = [completed(target, "recycling", tmp_path, sampling) for target in targets]
    eager, whole = ([(done.token_ids, done.steps) for done in answer] for answer in answers)
    assert whole == eager and graphs.failures == set()
    assert "_step_then" in recorded_functions(graphs)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["medusa", "eagle2"])
def test_a_recording_may_run_a_step_more_than_once(
    name: str, sampling: Sampling, tmp_path: Path
) -> None:
    """A CUDA graph's function runs before it is captured, and moves rows of the cache each time."""
    plain, rerunning = (
        completed(Target(random_llama(), execution), name, tmp_path, sampling)
        for execution in (None, Graphs(rerun))
    )
    assert [done.steps for done in plain] == [done.steps for done in rerunning]
    assert [done.token_ids for done in plain] == [done.token_ids for done in rerunning]


@pytest.mark.parametrize(
    ("name", "num_saved"), [("vanilla", 1), ("pld", 1), ("eagle2", 2), ("medusa", 2)]
)
def test_a_whole_step_saves_the_replays_of_its_parts(
    name: str, num_saved: int, tmp_path: Path
) -> None:
    counting = Counting()
    target = Target(random_llama(), Graphs(counting))
    num_replays = []
    for is_traced in (False, True):
        counting.num_replays = 0
        answers = completed(target, name, tmp_path, Sampling(), is_traced=is_traced)
        num_replays.append(counting.num_replays)
    whole, in_parts = num_replays
    assert in_parts - whole == num_saved * sum(len(done.steps) for done in answers)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_draft_model_draws_each_token_in_one_replay(sampling: Sampling, tmp_path: Path) -> None:
    counting = Counting()
    target = Target(random_llama(), Graphs(counting))
    answers = completed(target, "sps", tmp_path, sampling)
    num_drafted = sum(sum(done.num_nodes) - len(done.steps) for done in answers)
    num_steps = sum(len(done.steps) for done in answers)
    # Each answer adds two replays: the target's prefill, and the rule. The draft model's prefill
    # is the replay that drafts the answer's first token.
    assert counting.num_replays == num_drafted + num_steps + 2 * len(answers)


def test_the_parts_around_a_rule_that_reads_values_are_still_recorded(tmp_path: Path) -> None:
    def reading(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
        assert logits.max().item() > 0
        return lossless(tree, logits, sampler)

    graphs, answers = Graphs(TraceRecorder()), []
    for execution in (None, graphs):
        target = Target(random_llama(), execution)
        drafter = build("medusa", target, tmp_path)
        drafter.rule = reading
        answers.append(decode(target, drafter, Request(prompts()[0], 30)).token_ids)
    assert answers[0] == answers[1]
    assert sorted(reason.partition(":")[0] for reason in graphs.failures) == [
        "Target._step_then", "choose"
    ]  # fmt: skip
    assert {"_tree_step", "_gather_path"} <= recorded_functions(graphs)
