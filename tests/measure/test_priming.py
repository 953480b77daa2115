"""On a GPU, each request is primed by a short untimed completion."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specbench.engine.drafter import Drafter
from specbench.engine.target import Forward, Target
from specbench.measure.local.engine import PRIMING_TOKENS, EngineBackend
from specbench.measure.local.engine_load import LoadedEngine
from specbench.measure.local.peak_memory import MemoryLedger
from specbench.registry import names
from specbench.types import Completion, Request, Sampling
from tests.support.models import prompts, random_llama
from tests.support.products import each_once
from tests.support.weights import build


def backend_of(target: Target, drafters: Mapping[str, Drafter]) -> EngineBackend:
    setup = SimpleNamespace(has_phases=False, is_traced=False, checks_drafts=False, threads=None)
    return EngineBackend(
        cast(Any, setup), loaded=LoadedEngine(target, drafters, 0.0, MemoryLedger(target))
    )


def test_a_request_is_begun_by_its_own_method_with_a_few_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, Request]] = []

    def decoded(self: EngineBackend, method: str, request: Request) -> Completion:
        asked.append((method, request))
        return Completion((4,), "budget", (), 1.0, 2.0)

    monkeypatch.setattr(EngineBackend, "_decode", decoded)
    with backend_of(Target(random_llama()), {}) as backend:
        backend._prime("sps", Request((1, 2, 3), 20, Sampling(1.0), frozenset({2}), 7))
        backend._prime("vanilla", Request((1,), 1))
        backend.complete("vanilla", Request((1,), 1))  # on a CPU nothing is run twice
    assert asked == [
        ("sps", Request((1, 2, 3), PRIMING_TOKENS, Sampling(1.0), frozenset({2}), 7)),
        ("vanilla", Request((1,), 1)),
        ("vanilla", Request((1,), 1)),
    ]


@pytest.mark.parametrize(
    ("name", "sampling"), each_once(names(), [Sampling(), Sampling(1.0)]), ids=str
)
def test_tokens_and_steps_are_those_of_an_unprimed_completion(
    name: str, sampling: Sampling, tmp_path: Path
) -> None:
    target = Target(random_llama(layers=8))
    with backend_of(target, {name: build(name, target, tmp_path)}) as backend:
        for seed, prompt in enumerate(prompts()[::2]):
            request = Request(prompt, 24, sampling, seed=seed)
            plain = backend.complete(name, request)
            backend._prime(name, request)
            primed = backend.complete(name, request)
            assert (primed.token_ids, primed.steps) == (plain.token_ids, plain.steps)


def test_a_draft_model_has_prefilled_the_prompt_before_it_is_timed(tmp_path: Path) -> None:
    target = Target(random_llama(layers=8))
    drafter = build("sps", target, tmp_path)
    lengths: list[int] = []
    model = drafter._model  # type: ignore[attr-defined]
    prefill = model.prefill

    def counted(ids: Sequence[int], room: int = 0) -> Forward:
        lengths.append(len(ids))
        return prefill(ids, room)

    model.prefill = counted
    with backend_of(target, {"sps": drafter}) as backend:
        backend._prime("sps", Request(prompts()[1], 20))
    assert lengths == [len(prompts()[1]) + 1]


def test_the_garbage_collector_leaves_alone_what_was_loaded() -> None:
    """Its search through all of it takes a fifth of a second, in whichever sample it falls."""
    target = Target(random_llama())
    mode = SimpleNamespace(name="eager", reason=None)
    setup = SimpleNamespace(has_phases=False, is_traced=False, threads=1, mode=mode)
    loaded = LoadedEngine(target, {}, 0.0, MemoryLedger(target))
    before = gc.get_freeze_count()
    with EngineBackend(cast(Any, setup), loaded=loaded) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        assert gc.get_freeze_count() > before + 100_000
    assert gc.get_freeze_count() == 0
