"""Paths: the number of right tokens of each chain, for chains that depend on where they start.

If tokens are drawn, the method drafts along the answer, and the profile has the chance that each
token is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree
from specbench.methods.sps import next_length
from specbench.settings import grids
from specbench.settings.run_method import RunMethod
from specbench.tune.drafts import Draft, DraftAt, Outcome, num_accepted, shares
from specbench.tune.kind import Kind, SizedDraft
from specbench.tune.profile_file import Answer, Arrays, Profile
from specbench.tune.recorder import Recorder

if TYPE_CHECKING:
    from torch import Tensor


class AlongAnswer(Sampler):
    """Draws the tokens of an answer, whatever their probabilities, and keeps the probabilities."""

    def __init__(self, sampler: Sampler, following: Sequence[int]) -> None:
        super().__init__(sampler.sampling, sampler.generator.device)
        # a copy, since the target's generator must not advance
        self.generator = sampler.generator.clone_state()
        self._following = iter(following)
        self.probs_of_drawn: list[float] = []

    def draw(self, probs: Tensor) -> Tensor:
        import torch

        token_ids = [next(self._following, 0) for _ in probs]  # 0: any token, after the end
        drawn = torch.tensor(token_ids, device=probs.device)
        self.probs_of_drawn += probs.gather(1, drawn[:, None])[:, 0].tolist()
        return drawn


class ChainRecorder(Recorder):
    """Keeps the number of right tokens of each chain, or the chance of each drawn token.

    The rule accepts an emitted token x with the probability min(1, q(x) / p(x)), where q is the
    distribution of the draft and p that of the target.
    """

    def __init__(self, drafter: Drafter, answer: Sequence[int]) -> None:
        super().__init__(drafter, answer)
        self._num_right: list[int] = []  # first right tokens of each greedy chain, by position
        self._draft_probs: list[list[float]] = []  # q of the answer's next tokens, by position
        self._target_probs: list[float] = []  # p of the answer's next token, by position

    def record(self, state: State, following: Sequence[int]) -> None:
        """Draft a chain, and keep how well it agrees with the answer's next tokens.

        At temperature 0, `self._num_right` gets the number of right tokens. Above 0, the drafter's
        draws are replaced by the answer's tokens, and `self._draft_probs` gets the drafter's
        probability q of each of them.

        Args:
            state: the completion so far. The chain follows its last token; its sampler has the
                temperature.
            following: token ids of the answer after the completion so far.
        """
        if state.sampler.sampling.is_greedy:
            self._num_right.append(_count_right(self.drafter.propose(state), following))
            return
        # draws the tokens of `following`, and keeps their q
        sampler = AlongAnswer(state.sampler, following)
        chain = self.drafter.propose(_with_sampler(state, sampler))
        # Without a q the chain is not drawn. A right token is always accepted, as if its q were
        # infinite. The tokens after the right ones get the chance 0 in `acceptance_chances`.
        if chain.q is None:
            self._draft_probs.append([np.inf] * _count_right(chain, following))
        else:
            self._draft_probs.append(sampler.probs_of_drawn)

    def observe(self, state: State, result: StepResult) -> None:
        if not state.sampler.sampling.is_greedy:
            target_probs = state.sampler.probs(result.forward.logits[:1])  # after the root
            # `pending` is the token that the step emitted
            self._target_probs.append(float(target_probs[0, state.pending]))
        super().observe(state, result)

    @property
    def path(self) -> NDArray[Any] | None:
        """The agreement of the chains with the answer; None if the answer has no position.

        For drawn chains, the chance that each token is accepted [positions, tokens]. For greedy
        chains, the number of right tokens [positions].
        """
        if self._draft_probs:
            return acceptance_chances(self._draft_probs, self._target_probs)
        return np.array(self._num_right, dtype=np.uint16) if self._num_right else None

    @property
    def arrays(self) -> Arrays:
        path = self.path
        return {} if path is None else {"path": path}


class PathKind(Kind):
    """Chains, of which only the longest is recorded. A shorter chain is its beginning."""

    name = "path"
    array_names: Collection[str] = ("path",)
    free_options: Collection[str] = ("num_tokens",)
    bounded_options: Collection[str] = ("num_tokens",)

    def record(self, drafter: Drafter, answer: Sequence[int]) -> Recorder:
        return ChainRecorder(drafter, answer)

    def replay(self, profile: Profile, label: str, method: RunMethod) -> DraftAt:
        """Make a function that returns a setting's chain at a position of a stored answer.

        Args:
            profile: only its header is read here; its answers have the recorded chains.
            label: the method as it was profiled.
            method: the method with the options of the setting. `num_tokens` is the length of the
                draft, `schedule` the rule by which the result of a step changes the next length.
        """
        options = method.options
        # True if drafts are not shorter at the end of an answer
        has_fixed_size = profile.header.methods[label].has_fixed_size

        def draft_at(answer: Answer, position: int, wanted_length: int | None) -> Draft:
            """Return the chain after `position` tokens of an answer, and what may be accepted.

            `wanted_length` is the number of draft tokens that the schedule asks for; None stands
            for `num_tokens`.
            """
            length = wanted_length or options.num_tokens  # draft tokens
            num_drafted = length
            if not has_fixed_size:
                # `limit`: most tokens of the answer. 1: the token that the target adds.
                num_drafted = min(length, answer.about.limit - position - 1)
            # the chance that each draft token is accepted, if all before it are
            chances = self.chances(answer.drafts[label], position, num_drafted)
            # For each number of accepted tokens: its chance, and the length of the next draft. The
            # recorded chain may be longer than this chain.
            outcomes = [
                Outcome(num_accepted, chance, next_length(options.schedule, length, num_accepted))
                for num_accepted, chance in shares(chances[:num_drafted])
            ]
            return Draft(num_nodes=1 + num_drafted, outcomes=outcomes)  # root and chain

        return draft_at

    def chances(self, arrays: Arrays, position: int, num_drafted: int) -> list[float]:
        """Return the chance that each token of a chain is accepted, if all tokens before it are.

        The chain follows the first `position` tokens of an answer, at least one, since the prefill
        gives the first. `arrays` has the recorded chains, which may be longer than `num_drafted`.
        """
        path = arrays["path"]  # number of right tokens [positions]; or chances [positions, tokens]
        if path.ndim == 1:  # not drawn: right tokens, then a wrong one
            return [1.0] * int(path[position - 1]) + [0.0]
        chances: list[float] = path[position - 1].tolist()
        return chances

    def sizes(self, options: Any, drafter: Drafter) -> Iterator[SizedDraft]:
        for num_tokens in grids.up_to(self.longest_chain(options), grids.TIMED_CHAINS):
            yield SizedDraft({"rows": num_tokens + 1}, options.chained(num_tokens))

    def longest_chain(self, options: Any) -> int:
        """Return the number of draft tokens of the longest chain that is timed."""
        longest: int = options.num_tokens
        return longest

    def grid(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        constant = {"schedule": "constant"} if "schedule" in options else {}
        for num_tokens in grids.TRIED_CHAINS:
            yield {"num_tokens": num_tokens, **constant}


def _with_sampler(state: State, sampler: Sampler) -> State:
    """Copy the state of a completion, with another sampler."""
    copied = State(state.request, sampler, state.limit)
    for token_id in state.token_ids[len(state.request.prompt_ids) :]:
        copied.append(token_id)
    return copied


def _count_right(tree: DraftTree, following: Sequence[int]) -> int:
    """Count the first tokens of a chain that are also the answer's next tokens."""
    return num_accepted(tree.tokens.tolist(), tree.layout.parents.tolist(), following)


def acceptance_chances(
    draft_probs: Sequence[Sequence[float]], target_probs: Sequence[float]
) -> Any:
    """Compute the chance that each token of a chain is accepted [positions, tokens], as float32.

    Args:
        draft_probs: the draft's probabilities of the answer's tokens, from each position on.
        target_probs: the target's probability of each token of the answer except the first and the
            last. The prefill gives the first; whether the last is accepted changes no step.
    """
    # chance[position, depth] = min(1, q / p) of the answer's token position + depth + 1, from 0
    longest = max(1, *map(len, draft_probs))
    chances = np.zeros((len(draft_probs), longest), np.float32)
    for position, probs in enumerate(draft_probs):
        pairs = zip(probs, target_probs[position:], strict=False)
        for depth, (draft_prob, target_prob) in enumerate(pairs):
            chances[position, depth] = min(1.0, draft_prob / target_prob)
    return chances


KIND = PathKind()
