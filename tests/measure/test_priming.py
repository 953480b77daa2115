"""On a GPU, each request is primed by a short untimed completion.

The warm-up captures every graph that samples need, and no other.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.target import Forward, Target
from specbench.errors import MethodFault
from specbench.measure.local.engine import PRIMING_TOKENS, EngineBackend
from specbench.measure.local.engine_load import broken_drafter
from specbench.measure.local.warm_up import WARM_UP_TOKENS, prompts_to, warm_up
from specbench.methods._draft_stack import DraftStack
from specbench.models.memory import GRAPH_RESERVE
from specbench.registry import names
from specbench.types import Completion, Request, Sampling
from tests.support.models import engine_backend, prompts, random_llama
from tests.support.tracing import TraceRecorder
from tests.support.weights import build


def test_a_request_is_primed_by_its_own_method() -> None:
    short, drawn = Request((1,), 1), Request((1, 2, 3), 20, Sampling(1.0), frozenset({2}), 7)
    with (
        mock.patch.object(EngineBackend, "_decode") as decoded,
        engine_backend(Target(random_llama()), {}) as backend,
    ):
        backend._prime("sps", drawn)
        backend._prime("vanilla", short)
        backend.complete("vanilla", short)  # on a CPU, nothing runs twice
        hooks = backend.describe().hooks
    begun = replace(drawn, max_new_tokens=PRIMING_TOKENS)
    asked = [call.args for call in decoded.call_args_list]
    assert asked == [("sps", begun), ("vanilla", short), ("vanilla", short)]
    assert [hooks[name].untimed_prefills for name in ("sps", "vanilla")] == [1, 1]
    assert hooks["sps"].untimed_s > 0


@pytest.mark.parametrize("name", ["sps", "recycling", "eagle3"])
def test_priming_does_not_change_tokens_and_steps(name: str, tmp_path: Path) -> None:
    """The contract of every method tests that a prompt leaves no state."""
    target = Target(random_llama(layers=8))
    with engine_backend(target, {name: build(name, target, tmp_path)}) as backend:
        for sampling in (Sampling(), Sampling(1.0)):
            request = Request(prompts()[2], 24, sampling)
            plain = backend.complete(name, request)
            backend._prime(name, request)
            primed = backend.complete(name, request)
            assert (primed.token_ids, primed.steps) == (plain.token_ids, plain.steps)


def test_priming_prefills_the_draft_model(tmp_path: Path) -> None:
    target = Target(random_llama(layers=8))
    drafter: Any = build("sps", target, tmp_path)
    with (
        mock.patch.object(drafter._model, "prefill", wraps=drafter._model.prefill) as prefill,
        engine_backend(target, {"sps": drafter}) as backend,
    ):
        backend._prime("sps", Request(prompts()[1], 20))
    assert [len(call.args[0]) for call in prefill.mock_calls] == [len(prompts()[1]) + 1]


def test_the_garbage_collector_skips_loaded_objects() -> None:
    """Otherwise a search through all objects could take a fifth of a second in any sample."""
    target = Target(random_llama())
    gc.unfreeze()  # what earlier commands froze
    with engine_backend(target, {}) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        assert gc.get_freeze_count() > 100_000
    assert gc.get_freeze_count() == 0


def test_only_errors_of_the_capture_become_warnings(tmp_path: Path) -> None:
    target = Target(random_llama(), Graphs(TraceRecorder()))
    drafter = build("vanilla", target, tmp_path)
    with (
        mock.patch.object(drafter, "capture_graphs", side_effect=ValueError("too large")),
        engine_backend(target, {"a": drafter, "b": broken_drafter(MethodFault("no"))}) as backend,
    ):
        backend.warm_up([Request((1, 5, 6), 4)])
        (warning,) = backend.describe().warnings
    assert "a: the warm-up captured only some graphs. The error: ValueError: too" in warning


BUDGET = 40


def warmed_up(
    target: Target, folder: Path, longest: tuple[int, ...], temperatures: tuple[float, ...]
) -> dict[str, Drafter]:
    """The drafters of all methods after a warm-up. From then on, all steps are replayed.

    Hydra has its own cache. The warm-up makes a usual request and the longest one at each
    temperature.
    """
    drafters = {name: build(name, target, folder) for name in names()}
    drafters["hydra"] = build("hydra", target, folder / "+", {"arch": "prefix-mlp"})
    requests = [
        Request(prompt, BUDGET, Sampling(temperature))
        for temperature in temperatures
        for prompt in (prompts()[0], longest)
    ]
    failed: list[str] = []

    def complete(label: str, request: Request) -> Completion:
        try:
            return decode(target, drafters[label], request)
        except Exception as error:  # the warm-up leaves it to the samples
            failed.append(f"{label}: {error!r}")
            raise

    reasons = warm_up(target, drafters, complete, requests)
    assert (reasons, failed) == ((dict.fromkeys(drafters), {}), [])
    return drafters


@pytest.mark.slow
def test_no_graph_is_captured_while_samples_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.engine.buckets.BUCKET", 64)
    recorded = Graphs(TraceRecorder())
    target = Target(random_llama(max_position_embeddings=200), recorded)
    long = prompts()[2] * 4  # its answer ends with the context
    for drafter in warmed_up(target, tmp_path, long, (0.0, 1.0)).values():
        for prompt in (prompts()[0], long):
            for seed, sampling in enumerate((Sampling(), Sampling(1.0))):
                decode(target, drafter, Request(prompt, BUDGET, sampling, seed=seed))
    assert recorded.num_late == 0


def test_the_warm_up_reaches_every_size_of_the_cache() -> None:
    """Only the last prompt may skip a size, since its first step needs rows for a whole tree."""
    lengths = [len(prompt) for prompt in prompts_to(2270, (1, 5, 6), WARM_UP_TOKENS)]
    assert lengths == [256, 512, 768, 1280, 2238]


PREFILL = Target.prefill


def prefilled(self: Target, prompt_ids: Sequence[int], num_new: int = 0) -> Forward:
    """A prefill that computes nothing, unless it is captured."""
    if self.execution.prompt_size(len(prompt_ids)):
        return PREFILL(self, prompt_ids, num_new)
    n, needs, hidden = len(prompt_ids), self._needs, self.config.hidden_size
    self.cache.reset()
    self.reserve(n + num_new)
    self.cache.length = n
    rows = torch.zeros(n if needs.all_prompt_positions else 1, hidden)
    seen = dict.fromkeys(needs.layer_inputs, rows)
    return Forward(torch.zeros(1, self.vocab_size), rows if needs.hidden else None, seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "temperatures", "most"), [(2048, (0.0, 1.0), 490), (32768, (0.0,), 520)]
)
def test_all_methods_together_need_few_recordings(
    context: int,
    temperatures: tuple[float, ...],
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Target, "prefill", prefilled)
    monkeypatch.setattr(DraftStack, "prefill", lambda *args: None)
    recorded = Graphs(TraceRecorder())
    target = Target(random_llama(max_position_embeddings=context).float(), recorded)
    warmed_up(target, tmp_path, (7,) * context, temperatures)
    print(f"{recorded.num_recordings} recordings at {context} tokens, T={temperatures}")
    assert recorded.buffer_bytes <= GRAPH_RESERVE
    assert recorded.num_recordings <= most
