"""On a GPU, each request is primed by a short untimed completion.

The warm-up captures every graph that samples need, and no other.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.graphs import cuda as graphs
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.target import Forward, Target
from specbench.measure.local.engine import PRIMING_TOKENS, EngineBackend
from specbench.measure.local.engine_load import _prompts_to, warm_up
from specbench.methods._draft_stack import DraftStack
from specbench.models.memory import GRAPH_RESERVE
from specbench.registry import names
from specbench.types import Completion, Request, Sampling
from tests.methods.building import build_random
from tests.support.models import engine_backend, prompts, random_llama
from tests.support.products import each_once
from tests.support.recorders import rerun, run_once
from tests.support.weights import build


def test_a_request_is_begun_by_its_own_method_with_a_few_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, Request]] = []

    def decoded(self: EngineBackend, method: str, request: Request) -> Completion:
        asked.append((method, request))
        return Completion((4,), "budget", (), 1.0, 2.0)

    monkeypatch.setattr(EngineBackend, "_decode", decoded)
    with engine_backend(Target(random_llama()), {}) as backend:
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
    with engine_backend(target, {name: build(name, target, tmp_path)}) as backend:
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
    with engine_backend(target, {"sps": drafter}) as backend:
        backend._prime("sps", Request(prompts()[1], 20))
    assert lengths == [len(prompts()[1]) + 1]


def test_the_garbage_collector_leaves_alone_what_was_loaded() -> None:
    """Its search through all of it takes a fifth of a second, in whichever sample it falls."""
    target = Target(random_llama())
    gc.unfreeze()  # what a command has frozen before
    with engine_backend(target, {}) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        assert gc.get_freeze_count() > 100_000
    assert gc.get_freeze_count() == 0


BUDGET = 40


def requests_of(
    first: tuple[int, ...], longest: tuple[int, ...], temperatures: tuple[float, ...]
) -> list[Request]:
    """A usual and the longest request for each temperature."""
    return [
        Request(prompt, BUDGET, Sampling(temperature))
        for temperature in temperatures
        for prompt in (first, longest)
    ]


def completing(
    target: Target, drafters: Mapping[str, Drafter]
) -> Callable[[str, Request], Completion]:
    return lambda label, request: decode(target, drafters[label], request)


def drafters_of(target: Target, folder: Path) -> dict[str, Drafter]:
    """Every method, Hydra with a cache of its own."""
    hydra = build_random("hydra", target, folder / "+", {"arch": "prefix-mlp"})
    return {**{name: build(name, target, folder) for name in names()}, "hydra": hydra}


@pytest.mark.slow
def test_no_graph_is_captured_while_samples_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "BUCKET", 64)
    recorded = Graphs(rerun)
    target = Target(random_llama(max_position_embeddings=200), recorded)
    drafters = drafters_of(target, tmp_path)
    complete = completing(target, drafters)
    long = prompts()[2] * 4  # is completed to the end of the context
    reasons = warm_up(target, drafters, complete, requests_of(prompts()[0], long, (0.0, 1.0)))
    assert reasons == dict.fromkeys(drafters)
    for label in drafters:
        for prompt in (prompts()[0], long):
            for seed, sampling in enumerate((Sampling(), Sampling(1.0))):
                complete(label, Request(prompt, BUDGET, sampling, seed=seed))
    assert recorded.num_late == 0


def test_each_size_of_the_cache_is_reached_from_the_one_before() -> None:
    """The last prompt alone may skip a size: its first step needs rows for a whole tree."""
    lengths = [len(prompt) for prompt in _prompts_to(2270, (1, 5, 6))]
    assert lengths == [256, 512, 768, 1280, 2238]


@pytest.fixture
def short_prefills(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace prefills by ones that compute nothing."""

    def prefill(self: Target, prompt_ids: Any, room: int = 0) -> Forward:
        n, needs, hidden = len(prompt_ids), self._needs, self.config.hidden_size
        self.cache.reset()
        self.reserve(n + room)
        self.cache.length = n
        rows = torch.zeros(n if needs.all_prompt_positions else 1, hidden)
        seen = dict.fromkeys(needs.layer_inputs, rows)
        return Forward(torch.zeros(1, self.vocab_size), rows if needs.hidden else None, seen)

    monkeypatch.setattr(Target, "prefill", prefill)
    monkeypatch.setattr(DraftStack, "prefill", lambda *args: None)
    yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "temperatures", "most"), [(2048, (0.0, 1.0), 150), (32768, (0.0,), 250)]
)
def test_all_methods_together_need_few_recordings(
    context: int, temperatures: tuple[float, ...], most: int, tmp_path: Path, short_prefills: None
) -> None:
    recorded = Graphs(run_once)
    target = Target(random_llama(max_position_embeddings=context).float(), recorded)
    drafters = drafters_of(target, tmp_path)
    requests = requests_of(prompts()[0], (7,) * context, temperatures)
    reasons = warm_up(target, drafters, completing(target, drafters), requests)
    assert reasons == dict.fromkeys(drafters)
    print(f"{recorded.num_recordings} recordings at {context} tokens, T={temperatures}")
    assert recorded.num_recordings <= most
    assert recorded.buffer_bytes <= GRAPH_RESERVE
