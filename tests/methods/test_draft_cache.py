"""A drafter's cache of its own is at every step what a full recompute would give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.tree import DraftTree
from specbench.types import Request, Sampling
from tests.methods.building import build_random
from tests.support.models import prompts, random_target


def rows(layer: Any, count: int) -> Tensor:
    """Keys and values [2, heads, count, head_dim]."""
    kept = layer.cache.layers[0]
    return torch.cat([kept.keys[:, :, :count], kept.values[:, :, :count]])


class Checked(Drafter):
    """Runs a drafter beside a twin that is fed everything anew at every step."""

    def __init__(self, drafter: Any, twin: Any) -> None:
        self.drafter, self.twin = drafter, twin
        self.needs = drafter.needs
        self.seen: list[tuple[Tensor, ...]] = []
        self.num_checked = 0

    def start(self, state: State, prefill: Any) -> None:
        self.drafter.start(state, prefill)
        self.twin.start(state, prefill)
        self.seen = [self.missing()]

    def observe(self, state: State, outcome: Any) -> None:
        self.drafter.observe(state, outcome)
        self.seen.append(self.missing())

    def propose(self, state: State) -> DraftTree:
        tree = self.drafter.propose(state)
        everything = [torch.cat(parts) for parts in zip(*self.seen, strict=True)]
        layer, twin = self.layer(self.drafter), self.layer(self.twin)
        twin.cache.reset()
        out = self.feed(everything)
        torch.testing.assert_close(
            rows(layer, state.num_committed), rows(twin, state.num_committed)
        )
        torch.testing.assert_close(self.drafter.last, out)
        self.num_checked += 1
        return tree

    def missing(self) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def layer(self, drafter: Any) -> Any:
        raise NotImplementedError

    def feed(self, everything: list[Tensor]) -> Tensor:
        raise NotImplementedError


class CheckedEagle(Checked):
    def missing(self) -> tuple[Tensor, ...]:
        return self.drafter._features, self.drafter._tokens

    def layer(self, drafter: Any) -> Any:
        return drafter.model.layer

    def feed(self, everything: list[Tensor]) -> Tensor:
        return self.twin.model.feed(*everything)


class CheckedHydra(Checked):
    def missing(self) -> tuple[Tensor, ...]:
        return (self.drafter._rows,)

    def layer(self, drafter: Any) -> Any:
        return drafter._prefix.layer

    def feed(self, everything: list[Tensor]) -> Tensor:
        return self.twin._prefix.feed(*everything)


def keep_last(owner: Any, name: str, drafter: Any) -> None:
    """Let `drafter.last` be what `owner.name` returned last."""
    inner = getattr(owner, name)

    def wrapped(*args: Any) -> Tensor:
        drafter.last = inner(*args)
        return drafter.last

    setattr(owner, name, wrapped)


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
        keep_last(drafter._prefix, "feed", drafter)
        checked: Checked = CheckedHydra(drafter, twin)
    else:
        keep_last(drafter.model, "feed", drafter)
        checked = CheckedEagle(drafter, twin)
    lengths: list[int] = []
    for prompt in prompts():
        lengths += decode(target, checked, Request(prompt, 24, sampling)).accept_lengths
    assert checked.num_checked == len(lengths)
    assert max(lengths) > 1
