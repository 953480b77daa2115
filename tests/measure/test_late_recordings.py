"""The warm-up of a single method captures all graphs that its samples need."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specbench.engine.clock import DeviceClock
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.target import Target
from specbench.measure.local.warm_up import warm_up
from specbench.tune.timed import EnoughSteps, TimedDrafter
from specbench.types import Request, Sampling
from tests.engine.test_prompts import prompt_of
from tests.support.models import prompts, random_llama
from tests.support.tracing import TraceRecorder
from tests.support.weights import build

REPEATED = prompts()[2] * 8
"""A prompt that repeats itself, so that its drafts are copies."""


def warmed(
    name: str, options: dict[str, Any], requests: Sequence[Request], folder: Path, context: int
) -> tuple[Target, Drafter, Graphs]:
    """A target and the drafter of a method, after the warm-up for these requests."""
    recorded = Graphs(TraceRecorder())
    target = Target(random_llama(layers=8, max_position_embeddings=context), recorded)
    drafter = build(name, target, folder, **options)
    longest = max(requests, key=lambda request: len(request.prompt_ids))
    reasons = warm_up(
        target, {name: drafter}, lambda _, request: decode(target, drafter, request),
        [requests[0], longest],
    )  # fmt: skip
    assert reasons == ({name: None}, {})
    return target, drafter, recorded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pld", {"allow_shorter": True}),
        ("suffix", {"shape": "tree", "depth": 8, "num_tokens": 64}),
        ("sam", {"other": "eagle2"}),
        ("sam", {"other": "eagle3", "threshold": 1}),
        ("sam", {"other": "eagle2", "nodes": 100, "threshold": 1000}),
        ("sam", {"other": "eagle2", "depth": 1, "num_tokens": 10, "threshold": 1000}),
    ],
    ids=str,
)
def test_steps_of_every_size_are_captured_before(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.engine.buckets.BUCKET", 128)
    requests = [Request(prompt, 40) for prompt in (*prompts(), REPEATED)]
    target, drafter, recorded = warmed(name, options, requests, tmp_path, context=480)
    eager_target = Target(random_llama(layers=8, max_position_embeddings=480))
    eager_drafter = build(name, eager_target, tmp_path, **options)
    for request in requests:
        replayed, eager = (
            decode(target, drafter, request),
            decode(eager_target, eager_drafter, request),
        )
        assert (replayed.token_ids, replayed.steps) == (eager.token_ids, eager.steps)
    assert recorded.num_late == 0 and recorded.failures == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lengths", "budget"),
    [
        ("eagle2", (17, 120, 250, 455), 8),
        ("eagle", (17, 250, 480), 12),
        ("sps", (17, 126, 129), 2),
        ("eagle2", (17, 127, 129), 2),
        ("sps", (17, 127, 128), 3),
        ("vanilla", (17, 128), 1),
    ],
    ids=str,
)
def test_short_answers_to_long_prompts_are_captured_before(
    name: str, lengths: Sequence[int], budget: int, tmp_path: Path
) -> None:
    requests = [Request(prompt_of(length), budget, Sampling()) for length in lengths]
    target, drafter, recorded = warmed(name, {}, requests, tmp_path, context=2048)
    for request in requests:
        decode(target, drafter, request)
    assert recorded.num_late == 0


@pytest.mark.parametrize("name", ["pld", "suffix", "sps", "sam"])
def test_timed_steps_use_the_methods_recordings(name: str, tmp_path: Path) -> None:
    request = Request(prompts()[2], 40)
    target, drafter, recorded = warmed(name, {}, [request], tmp_path, context=2048)
    answer = (*request.prompt_ids, *decode(target, drafter, request).token_ids)
    timed = TimedDrafter(drafter, DeviceClock(target.device), 12, answer)
    with pytest.raises(EnoughSteps):
        decode(target, timed, request)
    assert len(timed.seconds) == 12 and recorded.num_late == 0
