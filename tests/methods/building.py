"""Drafters on random heads, and completions with them."""

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
    values = {"max_new_tokens": 24, "eos_ids": frozenset({2}), "seed": 3, **changes}
    return decode(target, drafter, Request(prompt, **values))


class Recording(Drafter):
    """Drafts like another drafter, and keeps each tree with the text before it."""

    def __init__(self, other: Drafter) -> None:
        self.other, self.trees = other, list[tuple[tuple[int, ...], DraftTree]]()
        self.needs, self.rule, self.tree_sizes = other.needs, other.rule, other.tree_sizes
        self.start, self.observe = other.start, other.observe  # type: ignore[method-assign]

    def propose(self, state: State) -> DraftTree:
        tree = self.other.propose(state)
        self.trees.append((tuple(state.token_ids), tree))
        return tree

    @property
    def drafts(self) -> list[tuple[tuple[int, ...], list[int]]]:
        """Each text with the tokens below its last one."""
        return [(text, tree.tokens[1:].tolist()) for text, tree in self.trees]
