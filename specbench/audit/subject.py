"""A method under test, with the target and the prompts it is tested on, and right drafts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from specbench.audit.evidence import NUM_BEST, TokenNumbers, plain_logits
from specbench.audit.results import EPSILON, near_tie
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.planting import plant
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.types import Completion, Request


class Plain(Drafter):
    """Proposes the pending token alone."""

    tree_sizes = (1,)

    def propose(self, state: State) -> DraftTree:
        return state.chain()


class Planted(Drafter):
    """A method's drafter with the right token planted in its trees, at changing depths and ranks.

    Random drafts are hardly ever accepted, so caches, residuals and bonus tokens deep in a tree
    would not be tested.

    `answer` are all right tokens, prompt included. Steps are counted from `first_step`: in
    even ones the path goes to the deepest node of the tree, in odd ones to children of
    changing ranks. The deepest tree so far counts as an even one. `trees` are the method's own
    proposals by the number of tokens before them, `depths` the depths of the trees as far as
    the budget allows.
    """

    def __init__(self, drafter: Drafter, answer: Sequence[int], first_step: int = 0) -> None:
        self.needs, self.rule = drafter.needs, drafter.rule
        self.tree_sizes = drafter.tree_sizes
        self.trees: dict[int, DraftTree] = {}
        self.num_planted: list[int] = []
        self.depths: list[int] = []
        self._drafter, self._answer, self._first_step = drafter, answer, first_step

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        tree, at = self._drafter.propose(state), len(state.token_ids)
        self.trees[at] = replace(tree, tokens=tree.tokens.clone())
        right = self._answer[at : at + tree.layout.max_depth]
        deepest = int(tree.layout.depths[: int(tree.num_verify)].max())  # that may be accepted
        depth = min(deepest, state.remaining - 1)
        is_deepest = depth > max(self.depths, default=0)
        step = 0 if is_deepest else self._first_step + len(self.num_planted)
        planted = plant(tree, right, step)
        self.num_planted.append(min(planted[1], state.remaining - 1))
        self.depths.append(depth)
        return planted[0]

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)


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
    drawn: list[TokenNumbers] = field(default_factory=list)
    """The sampled tokens of the checks so far at temperature 1."""

    @cached_property
    def drafter(self) -> Drafter:
        """The drafter that most checks share: its state is carried over."""
        return self.build()

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
            logits = plain_logits(self.target, prompt, token_ids)
            best = logits.topk(min(NUM_BEST, logits.shape[1])).values
            own = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
            gaps, scales = (best[:, :1] - own)[:, 0].tolist(), best.abs().amax(1).tolist()
            pairs = zip(gaps, scales, strict=True)
            return sum(gap > near_tie(self.dtype, scale) for gap, scale in pairs)
