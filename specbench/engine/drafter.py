"""The contract of a method: a drafter proposes trees, and is shown what became of them.

A method has no loop, no cache of the target's, no stop rule and no counter: those are the
engine's. It is described by one `Method`, which the registry finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.engine.accept import Accepted, Rule, Sampler, Verdict, lossless
from specbench.engine.source import WeightSource
from specbench.engine.target import Forward, Needs, Target
from specbench.engine.tree import DraftTree
from specbench.types import Request


class State:
    """What is known of a completion under way. The loop writes it, drafters read it."""

    def __init__(self, request: Request, sampler: Sampler, limit: int) -> None:
        self.request = request
        self.sampler = sampler
        self.token_ids = list(request.prompt_ids)
        self._end = len(request.prompt_ids) + limit

    @property
    def pending(self) -> int:
        """The last emitted token, which the target has not seen: the root of the next tree."""
        return self.token_ids[-1]

    @property
    def num_committed(self) -> int:
        """Tokens in the target's cache: all but the pending one."""
        return len(self.token_ids) - 1

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return self._end - len(self.token_ids)

    def chain(self, draft_ids: Sequence[int] = ()) -> DraftTree:
        """The chain of `draft_ids` below the pending token; without any, a step without a guess."""
        device = self.sampler.generator.device
        if not draft_ids:  # filled there: a copy from the host takes longer
            return DraftTree.chain(torch.full((1,), self.pending, device=device))
        return DraftTree.chain(torch.tensor([self.pending, *draft_ids], device=device))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step as the drafter is shown it, scratch nodes included."""

    tree: DraftTree
    forward: Forward
    verdict: Verdict
    followed: Accepted | None = None

    @property
    def accepted(self) -> Accepted:
        """The verdict's path and tokens on the device, where drafting goes on."""
        return self.followed or Accepted.of(self.verdict, self.tree.tokens.device)


class Drafter:
    """Base of all drafters. One object serves many completions, one after the other."""

    needs: Needs = Needs()
    """What `start` and `observe` want to see of the target."""

    rule: Rule = staticmethod(lossless)
    """How its trees are judged."""

    def start(self, state: State, prefill: Forward) -> None:
        """A new completion begins: forget the last one. `state` holds prompt and first token."""

    def propose(self, state: State) -> DraftTree:
        """The next tree; its root is `state.pending`."""
        raise TypeError(f"{type(self).__name__} does not say what it proposes")

    def observe(self, state: State, outcome: Outcome) -> None:
        """A step is done; `state` holds the emitted tokens already."""

    def bytes_read(self, num_nodes: float) -> float:
        """Bytes of weights that drafting a tree of `num_nodes` nodes (a mean, maybe) reads.

        A weight read by several passes counts as often; see `engine.weights`. A drafter that has
        weights and does not say so is given too high a limit in reports, never one too low.
        """
        return 0.0


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a drafter is built from. `weights` is the drafter's own checkpoint folder, if any.

    Or a source that makes the tensors of such a folder.
    """

    target: Target
    weights: Path | WeightSource | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """A method as the registry, the log and the reports know it.

    `options` is a frozen dataclass whose fields, with their types and defaults, are the method's
    options everywhere: on the command line, in `specbench show` and in `run.json`. `weights`
    names the checkpoint that a model card gives for it (usually the method's own name), None if
    it needs none.
    """

    name: str
    title: str
    summary: str
    paper: str
    options: type
    build: Callable[[Any, BuildContext], Drafter]
    weights: str | None = None
    is_lossless: bool = True

    def is_lossless_with(self, options: Any) -> bool:
        """Whether what it emits under these options is distributed as the target's own output.

        Options that decide it (another acceptance rule) say so by a property `is_lossless`.
        """
        return self.is_lossless and getattr(options, "is_lossless", True)
