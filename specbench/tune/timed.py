"""Drafters that time the first steps of a completion, and then end the completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.engine.clock import DeviceClock
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.planting import plant
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.engine.wrapped import WrappedDrafter
from specbench.errors import checked_seconds
from specbench.measure.local import threads as cores

PLANTED_TOKENS = (0, 1, 2)
"""The numbers of right tokens in the drafts of successive steps. They are small enough for every
draft, and differ because a step may take longer after accepted tokens.
"""


class EnoughSteps(Exception):
    """Ends the completion whose steps were timed."""


class TimedDrafter(WrappedDrafter):
    """Times the first steps of a completion, from draft to draft, and then ends the completion.

    Right tokens are planted in the drafter's trees, so that steps accept them. `PLANTED_TOKENS` has
    the number for each step.
    """

    def __init__(
        self, drafter: Drafter, clock: DeviceClock, num_steps: int, sequence: Sequence[int]
    ) -> None:
        """Wrap a drafter.

        Args:
            drafter: makes the drafts.
            clock: gives the time in seconds, after the target's device has finished.
            num_steps: steps to time before the completion ends.
            sequence: token ids of the prompt, followed by vanilla's answer.
        """
        super().__init__(drafter)
        self.prefill_s = 0.0
        """Seconds of the target's prefill; set by the caller."""
        self.start_s = 0.0
        """Seconds of the drafter's own prefill."""
        self.seconds: list[float] = []
        """Seconds of each step."""
        self.rows: list[int] = []
        """Nodes of each step's tree."""
        self.contexts: list[int] = []
        """Tokens before each step."""
        self._sequence = sequence
        self._now = clock.now
        self._num_steps = num_steps
        self._began_s = 0.0  # time at which the current step began

    def start(self, state: State, prefill: Forward) -> None:
        began_s = self._now()
        self._drafter.start(state, prefill)
        self.start_s = self._now() - began_s

    def propose(self, state: State) -> DraftTree:
        """Return the draft of the next step, with right tokens planted in it.

        A step is timed from one call to the next. A call ends the step before, and begins the next
        one. Planting is not timed.

        Raises:
            EnoughSteps: `num_steps` steps have been timed.
            ClockError: a step took no time by the clock.
        """
        self._end_step()
        self.contexts.append(state.num_committed)  # tokens before the next step
        self._began_s = self._now()
        tree = self._drafter.propose(state)
        planting_began_s = self._now()
        tree = self._planted(state, tree)
        self._began_s += self._now() - planting_began_s  # as if the step had begun later
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)

    def _end_step(self) -> None:
        """Keep the seconds of the step that ends, if any. Raise `EnoughSteps` after the last."""
        if self.contexts:  # a step has begun
            self.seconds.append(checked_seconds(self._now() - self._began_s, "a step"))
        if len(self.seconds) == self._num_steps:
            raise EnoughSteps

    def _planted(self, state: State, tree: DraftTree) -> DraftTree:
        """Plant the next tokens of the answer in the tree of a step. Also keep its size."""
        num_planted = PLANTED_TOKENS[len(self.rows) % len(PLANTED_TOKENS)]
        self.rows.append(tree.num_nodes)
        if tree.num_nodes == 1 or num_planted == 0:
            return tree
        end = len(state.token_ids)
        # 0: along the longest path
        return plant(tree, self._sequence[end : end + num_planted], 0)[0]


@dataclass(slots=True)
class Turn:
    """Successive steps with the same number of rows."""

    rows: int
    """Rows of each step."""
    num_threads: int
    """CPU threads of each step."""
    num_steps: int
    """Steps to take."""
    seconds: list[float] = field(default_factory=list)
    """The seconds of each step so far."""

    @property
    def settled_seconds(self) -> list[float]:
        """The seconds of all steps but the first, whose data is not cached yet."""
        return self.seconds[1:]


class TurnDrafter(Drafter):
    """Takes turns within one completion, with chains of wrong tokens as drafts.

    The target drops the tokens since the prefill after each step, so that all steps have the same
    context. The tree size is vanilla's, so that each number of rows is measured without padding.
    """

    def __init__(self, turns: Sequence[Turn], vanilla: Drafter, clock: DeviceClock, target: Target):
        """Prepare to take turns, one after the other, in one completion.

        Args:
            turns: turns to take, in order; each receives the seconds of its steps.
            vanilla: its acceptance rule, tree sizes and needs (the target's outputs that it reads)
                are used.
            clock: gives the time in seconds, after the target's device has finished.
            target: computes the steps.
        """
        self.needs = vanilla.needs
        self.rule = vanilla.rule
        self.tree_sizes = vanilla.tree_sizes  # nodes of a tree; with one size nothing is padded
        # the turn of each step of the completion
        self._turns_by_step = [turn for turn in turns for _ in range(turn.num_steps)]
        self._num_begun = 0  # steps that have begun
        self._now = clock.now
        self._target = target
        # One of the last ids of a vocabulary is hardly ever the target's choice.
        self._wrong_token_id = target.vocab_size - 2
        self._began_s = 0.0  # time at which the current step began

    def propose(self, state: State) -> DraftTree:
        """Return the draft of the next step: a chain of wrong tokens, with a node per row.

        A step is timed from one call to the next. A call adds the seconds of the step before to its
        turn, and begins the next step.

        Raises:
            EnoughSteps: all steps of all turns have been timed. It ends the completion.
        """
        if self._num_begun:  # there is a step before
            previous_turn = self._turns_by_step[self._num_begun - 1]
            step_s = checked_seconds(self._now() - self._began_s, "a step")
            previous_turn.seconds.append(step_s)
        if self._num_begun == len(self._turns_by_step):
            raise EnoughSteps
        turn = self._turns_by_step[self._num_begun]  # of the next step
        self._num_begun += 1
        cores.set_threads(turn.num_threads)
        # The cache keeps only the prompt's tokens, so that all steps have the same context.
        self._target.crop(len(state.request.prompt_ids))
        chain = state.chain([self._wrong_token_id] * (turn.rows - 1))
        self._began_s = self._now()
        return chain
