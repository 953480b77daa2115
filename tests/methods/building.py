"""Drafters on random heads, and completions with them."""

from pathlib import Path
from typing import Any

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter, State, StepResult
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.registry import get
from specbench.types import Completion, Request
from tests.methods.checkpoints import MAKERS

HEADS = ("medusa", "hydra", "eagle", "eagle2", "eagle3", "peagle", "dflash", "mtp")
"""The methods with trained heads."""


def build_in(folder: Path | None, name: str, target: Target, **options: Any) -> Drafter:
    """The drafter on the checkpoint in `folder`, if it has one."""
    method = get(name)
    return method.build(method.options(**options), BuildContext(target, folder))


def build_random(
    name: str, target: Target, folder: Path, made: dict[str, Any] | None = None, **options: Any
) -> Drafter:
    """The drafter on a random checkpoint; `made` goes to the checkpoint's maker."""
    weights = get(name).weights
    assert weights
    return build_in(
        MAKERS[weights](target, folder / weights, **(made or {})), name, target, **options
    )


def complete(
    target: Target, drafter: Drafter, prompt: tuple[int, ...], **changes: Any
) -> Completion:
    values = {"max_new_tokens": 24, "eos_ids": frozenset({2}), "seed": 3, **changes}
    return decode(target, drafter, Request(prompt, **values))


class Recording(Drafter):
    """Drafts like another drafter, and keeps what it was asked and what it answered."""

    def __init__(self, other: Drafter) -> None:
        self.other, self.drafts = other, list[tuple[tuple[int, ...], list[int]]]()
        self.needs, self.rule, self.tree_sizes = other.needs, other.rule, other.tree_sizes

    def start(self, state: State, prefill: Forward) -> None:
        self.other.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        tree = self.other.propose(state)
        self.drafts.append((tuple(state.token_ids), tree.tokens.tolist()))
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        self.other.observe(state, result)
