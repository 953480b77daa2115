"""Drafters on random heads, and completions with these drafters."""

from pathlib import Path
from typing import Any

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter, State
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.registry import get
from specbench.types import Completion, Request

HEADS = ("medusa", "hydra", "eagle", "eagle2", "eagle3", "peagle", "dflash", "mtp")
"""The methods with trained heads."""


def build_in(folder: Path | None, name: str, target: Target, **options: Any) -> Drafter:
    """The drafter on the checkpoint in `folder`, if it has one."""
    method = get(name)
    return method.build(method.options(**options), BuildContext(target, folder))


def complete(
    target: Target, drafter: Drafter, prompt: tuple[int, ...], **changes: Any
) -> Completion:
    """The completion of a prompt: 24 tokens with seed 3, unless changed."""
    fields = {"max_new_tokens": 24, "eos_ids": frozenset({2}), "seed": 3, **changes}
    return decode(target, drafter, Request(prompt, **fields))


class Recording(Drafter):
    """A drafter that drafts like another one, and keeps each tree with the text before it."""

    def __init__(self, recorded: Drafter) -> None:
        self.recorded = recorded
        self.trees: list[tuple[tuple[int, ...], DraftTree]] = []
        self.needs = recorded.needs
        self.rule = recorded.rule
        self.tree_sizes = recorded.tree_sizes
        self.start = recorded.start  # type: ignore[method-assign]
        self.observe = recorded.observe  # type: ignore[method-assign]

    def propose(self, state: State) -> DraftTree:
        tree = self.recorded.propose(state)
        self.trees.append((tuple(state.token_ids), tree))
        return tree

    @property
    def drafts(self) -> list[tuple[tuple[int, ...], list[int]]]:
        """Each text with the tokens below its last one."""
        return [(token_ids, tree.tokens[1:].tolist()) for token_ids, tree in self.trees]
