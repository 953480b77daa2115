"""A method under test, with the target and the prompts it is tested on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from specbench.audit.evidence import NUM_BEST, TokenNumbers, plain_logits
from specbench.audit.results import EPSILON, near_tie
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.types import Completion, Request


class Plain(Drafter):
    """Proposes the pending token alone."""

    tree_sizes = (1,)

    def propose(self, state: State) -> DraftTree:
        return state.chain()


@dataclass(frozen=True)
class Subject:
    """A method's drafter on a target. `build` makes a fresh drafter.

    `prompts` are token ids, `budget` the tokens of an answer. `known` are prompts of tasks,
    and `unknown` as many prompts of no task.
    """

    target: Target
    build: Callable[[], Drafter]
    prompts: Sequence[tuple[int, ...]]
    budget: int = 64
    known: Sequence[tuple[int, ...]] = ()
    unknown: Sequence[tuple[int, ...]] = ()
    drafters: list[Drafter] = field(default_factory=list)
    drawn: list[TokenNumbers] = field(default_factory=list)

    @property
    def sampled(self) -> TokenNumbers | None:
        """The sampled tokens of the checks so far at temperature 1."""
        return TokenNumbers.join(self.drawn) if self.drawn else None

    @property
    def drafter(self) -> Drafter:
        """The drafter that most checks share: its state is carried over."""
        if not self.drafters:
            self.drafters.append(self.build())
        return self.drafters[0]

    @property
    def dtype(self) -> str:
        name = str(self.target.dtype).removeprefix("torch.")
        return name if name in EPSILON else "float32"

    def complete(self, drafter: Drafter, prompt: tuple[int, ...], **changes: Any) -> Completion:
        """A checked completion of the budget, without end tokens unless given."""
        values: dict[str, Any] = {"max_new_tokens": self.budget, "seed": 3, **changes}
        return decode(self.target, drafter, Request(prompt, **values), is_checked=True)

    @cached_property
    def answers(self) -> list[tuple[int, ...]]:
        """Greedy answers without a draft."""
        return [self.complete(Plain(), prompt).token_ids for prompt in self.prompts]

    def wrong_tokens(self, prompt: tuple[int, ...], token_ids: Sequence[int]) -> int:
        """The number of tokens that are not the best ones, beyond rounding."""
        with torch.inference_mode(), without_cudnn_attention():
            return sum(self._gaps_beyond_rounding(prompt, token_ids))

    def _gaps_beyond_rounding(
        self, prompt: tuple[int, ...], token_ids: Sequence[int]
    ) -> Iterator[bool]:
        for row, token in zip(plain_logits(self.target, prompt, token_ids), token_ids, strict=True):
            best = row.topk(min(NUM_BEST, len(row))).values
            yield float(best[0] - row[token]) > near_tie(self.dtype, float(best.abs().max()))
