"""Speculative sampling with a separate draft model; a schedule sets the chain's length."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor

from specbench.engine.buckets import run_in_every_bucket
from specbench.engine.drafter import BuildContext, Drafter, Method, State, StepResult
from specbench.engine.method_options import MethodOptions
from specbench.engine.model_parts import pass_bytes
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.methods._chain import draft_chain, draw_next
from specbench.methods._draft_model import DraftModelDrafter, fit_vocabulary, load_draft_model
from specbench.types import option

Schedule: TypeAlias = Literal["heuristic", "constant"]
SCHEDULE_HELP = "heuristic: two more after a fully accepted draft, else one less"
"""Help of an option `schedule`."""


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of speculative sampling."""

    num_tokens: int = option(5, "draft tokens in the first step", min=1)
    schedule: Schedule = option("heuristic", SCHEDULE_HELP)
    weights: str = option("", "draft model, a folder or hub id")

    def most_nodes(self) -> int:
        return self.num_tokens + 1 if self.schedule == "constant" else 0

    def profiled(self) -> Self:
        """A copy of the options for an acceptance profile, with a draft token at every position."""
        return self.chained(1)

    def chained(self, num_tokens: int) -> Self:
        """A copy of the options with a chain of `num_tokens` draft tokens in every step."""
        return replace(self, num_tokens=num_tokens, schedule="constant")


class SpeculativeSampling(DraftModelDrafter):
    """Drafts a chain with a small model that has its own cache.

    The draft model runs ahead of the target. A step first crops the draft model's cache to the
    committed tokens, and feeds the missing tokens. This covers both rejection and full acceptance.
    Draft tokens are sampled with the request's own settings.

    Source: Leviathan et al. 2023; the heuristic schedule is from transformers' assisted
    generation, which Spec-Bench runs as SpS.

    Deviation: a draft does not end at EOS; the engine cuts the tokens after EOS anyway.
    """

    profile = "token"

    def __init__(self, model: Target, vocab_size: int, num_tokens: int, schedule: Schedule) -> None:
        """`vocab_size` is the target's. `num_tokens` is the length of the first draft."""
        super().__init__(model, vocab_size)
        self._first_num_tokens = self._num_tokens = num_tokens
        self._schedule = schedule

    def start(self, state: State, prefill: Forward) -> None:
        super().start(state, prefill)
        self._num_tokens = self._first_num_tokens

    def propose(self, state: State) -> DraftTree:
        model = self._model
        model.crop(min(model.cache.length, state.num_committed))
        missing = torch.tensor(self.missing_ids(state), device=model.device)
        count = min(self._num_tokens, state.remaining - 1)
        return draft_chain(missing, count, partial(self._draw, state.sampler), state.sampler)

    def _draw(self, sampler: Sampler, tokens: Tensor) -> Iterable[Tensor]:
        """Append tokens to the draft model and draw the next one, in one CUDA graph if possible."""
        model = self._model
        if not model.cache.length or not model.has_recorded_steps:
            return self._drawn(model.extend(tokens)[None], sampler=sampler)
        _, drawn = model.forward_then(DraftTree.chain(tokens), self._drawn, sampler=sampler)
        model.commit(range(tokens.shape[0]))
        return [part.clone() for part in drawn]  # the next draw overwrites them

    def _drawn(self, logits: Tensor, *inputs: Tensor, sampler: Sampler) -> tuple[Tensor, Tensor]:
        """Draw after the last row of logits [n, draft vocabulary]."""
        return draw_next(fit_vocabulary(logits[-1:], self._vocab_size), sampler)

    def capture_draws(self, num_tokens: int, sampler: Sampler) -> None:
        model = self._model
        for num_missing in (1, 2):  # two after a fully accepted draft
            tokens = torch.zeros(num_missing, dtype=torch.long, device=model.device)
            draw = partial(self._draw, sampler, tokens)
            run_in_every_bucket(model, num_missing, num_tokens, draw)
        model.crop(0)

    def observe(self, state: State, result: StepResult) -> None:
        accepted = result.verdict.num_accepted
        self._num_tokens = next_length(self._schedule, self._num_tokens, accepted)

    def longest_chain(self, num_tokens: int) -> int:
        """Number of nodes of the longest chain. Drafts grow while all their tokens are accepted."""
        draft_length = self._first_num_tokens
        num_left = num_tokens - 1
        longest = 1
        while num_left > 0:
            longest = max(longest, 1 + min(draft_length, num_left - 1))
            num_left -= draft_length + 1
            if self._schedule == "heuristic":
                draft_length += 2
        return longest

    def bytes_read(self, num_nodes: int) -> float:
        return pass_bytes(self._model.model) * (num_nodes - 1)  # one pass per draft token


def next_length(schedule: Schedule, num_tokens: int, num_accepted: int) -> int:
    """The length of the next draft, if `num_accepted` of `num_tokens` tokens were accepted."""
    if schedule == "constant":
        return num_tokens
    if num_accepted == num_tokens:
        return num_tokens + 2
    return max(1, num_tokens - 1)


def build(options: Options, context: BuildContext) -> Drafter:
    """Build the drafter for a target."""
    model, vocab_size = load_draft_model("sps", context), context.target.vocab_size
    return SpeculativeSampling(model, vocab_size, options.num_tokens, options.schedule)


METHOD = Method(
    name="sps",
    title="SpS",
    summary="speculative sampling: a small draft model proposes a chain",
    paper="Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding",
    options=Options,
    build=build,
    weights="sps",
    head="model",
    paper_order=1,
    colour="#5ED1FE",
)
