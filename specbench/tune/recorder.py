"""Record a method's drafts at every position of an answer that the target decodes alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.tune.profile_file import Arrays


class Recorder(Drafter, ABC):
    """Lets a drafter draft at every position of `answer`, but gives the target only the root.

    So the target gives vanilla's answer, and every step emits one token. `answer` has vanilla's
    token ids. Each kind of profile overrides `record` and `arrays`.
    """

    tree_sizes = (1,)

    def __init__(self, drafter: Drafter, answer: Sequence[int]) -> None:
        self.drafter = drafter
        self.needs = drafter.needs
        self._answer = answer

    def start(self, state: State, prefill: Forward) -> None:
        self.drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        num_emitted = len(state.token_ids) - len(state.request.prompt_ids)
        self.record(state, self._answer[num_emitted:])
        return state.chain()

    @abstractmethod
    def record(self, state: State, following: Sequence[int]) -> None:
        """Let the drafter draft, and keep the parts of the draft that a replay needs.

        Args:
            state: the completion so far; its last token is the root of the draft.
            following: the answer's tokens after the root.
        """

    def observe(self, state: State, result: StepResult) -> None:
        self.drafter.observe(state, result)

    @property
    @abstractmethod
    def arrays(self) -> Arrays:
        """The recorded drafts, with a row per token of the answer except the last."""
