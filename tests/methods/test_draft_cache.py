"""A drafter's own cache equals a full recompute at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.tree import DraftTree
from specbench.types import Request, Sampling
from tests.methods.building import build_random
from tests.support.models import prompts, random_target


def rows(layer: Any, count: int) -> Tensor:
    """Keys and values [2, heads, count, head_dim]."""
    kept = layer.cache.layers[0]
    return torch.cat([kept.keys[:, :, :count], kept.values[:, :, :count]])


class Checked(Drafter):
    """Runs a drafter and a twin that recomputes everything at every step."""

    def __init__(self, drafter: Any, twin: Any) -> None:
        self.drafter, self.twin = drafter, twin
        self.needs = drafter.needs
        self.seen: list[tuple[Tensor, ...]] = []
        self.num_checked = 0

    def start(self, state: State, prefill: Any) -> None:
        self.drafter.start(state, prefill)
        self.twin.start(state, prefill)
        self.seen = [self.of_prompt(state, prefill)]

    def observe(self, state: State, result: StepResult) -> None:
        self.drafter.observe(state, result)
        rows = list(result.verdict.path)
        self.seen.append(self.of_step(rows, list(result.verdict.token_ids), result.forward))

    def propose(self, state: State) -> DraftTree:
        tree = self.drafter.propose(state)
        everything = [torch.cat(parts) for parts in zip(*self.seen, strict=True)]
        layer, twin = self.layer(self.drafter), self.layer(self.twin)
        n = len(everything[0])
        assert n == state.num_committed
        start, last = torch.tensor(0), torch.tensor([n - 1])
        twin.cache.reserve(n)
        out = self.feed(everything, start, last, CacheSpan(n))
        torch.testing.assert_close(rows(layer, n), rows(twin, n))
        torch.testing.assert_close(self.drafter.last, out)
        self.num_checked += 1
        return tree

    def of_prompt(self, state: State, prefill: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def of_step(self, rows: list[int], token_ids: list[int], forward: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def layer(self, drafter: Any) -> Any:
        raise NotImplementedError

    def feed(
        self, everything: list[Tensor], start: Tensor, last: Tensor, cache_span: CacheSpan
    ) -> Tensor:
        raise NotImplementedError


class CheckedEagle(Checked):
    def of_prompt(self, state: State, prefill: Any) -> tuple[Tensor, ...]:
        tokens, model = torch.tensor(state.token_ids[1:]), self.drafter.model
        return model.features(model.captured(prefill), torch.arange(len(tokens))), tokens

    def of_step(self, rows: list[int], token_ids: list[int], forward: Any) -> tuple[Tensor, ...]:
        model = self.drafter.model
        return model.features(model.captured(forward), torch.tensor(rows)), torch.tensor(token_ids)

    def layer(self, drafter: Any) -> Any:
        return drafter.model.stack

    def feed(
        self, everything: list[Tensor], start: Tensor, last: Tensor, cache_span: CacheSpan
    ) -> Tensor:
        model = self.twin.model
        return model.stack.feed(*model.pairs(*everything), start, last, cache_span)


class CheckedHydra(Checked):
    def of_prompt(self, state: State, prefill: Any) -> tuple[Tensor, ...]:
        return (prefill.hidden,)

    def of_step(self, rows: list[int], token_ids: list[int], forward: Any) -> tuple[Tensor, ...]:
        return (forward.hidden[rows],)

    def layer(self, drafter: Any) -> Any:
        return drafter._prefix.stack

    def feed(
        self, everything: list[Tensor], start: Tensor, last: Tensor, cache_span: CacheSpan
    ) -> Tensor:
        return self.twin._prefix.feed(*everything, last, start + last[0] + 1, cache_span)


def keep_last(owner: Any, drafter: Any) -> None:
    """Keep the last result of `owner.feed` in `drafter.last`."""
    inner = owner.feed

    def wrapped(*args: Any) -> Tensor:
        drafter.last = inner(*args)
        return drafter.last

    owner.feed = wrapped


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "hydra"])
def test_the_draft_cache_is_that_of_a_full_recompute(
    method: str, sampling: Sampling, tmp_path: Path
) -> None:
    target = random_target(layers=4)
    made = {"arch": "prefix-mlp"} if method == "hydra" else None
    drafter: Any
    twin: Any
    drafter, twin = (build_random(method, target, tmp_path, made) for _ in range(2))
    if method == "hydra":
        keep_last(drafter._prefix, drafter)
        checked: Checked = CheckedHydra(drafter, twin)
    else:
        keep_last(drafter.model.stack, drafter)
        checked = CheckedEagle(drafter, twin)
    lengths: list[int] = []
    for prompt in prompts():
        lengths += decode(target, checked, Request(prompt, 24, sampling)).accept_lengths
    assert checked.num_checked == len(lengths)
    assert max(lengths) > 1
