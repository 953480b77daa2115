"""Measure whole steps of the target and of methods beside steps of vanilla, block by block.

Every step runs in the engine's own loop. Right tokens are planted in the drafts, outside of the
timed region, so that steps accept 0, 1 and 2 draft tokens in turn, whatever the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import median
from typing import NamedTuple

import numpy as np

from specbench.analysis.stats.arrays import FloatArray
from specbench.engine.clock import DeviceClock
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.log.machine import Threads
from specbench.measure.local import threads as cores
from specbench.settings import grids
from specbench.tune.timed import EnoughSteps, TimedDrafter, Turn, TurnDrafter
from specbench.types import Request

VANILLA_STEPS = 3
"""Steps of vanilla before and after each turn of a number of rows, which it is compared with."""
STEPS_PER_TURN = 4
"""Steps of such a turn: a median of three remains, since the first one is left out."""
STEPS_PER_VISIT = 10
"""Steps that each completion of a method is timed for."""
NUM_WARMUP_STEPS = 4
"""The first of these steps, which are left out: they read weights that are not in the caches."""


class Knot(NamedTuple):
    """A size of a method's draft that is measured."""

    label: str
    """The method."""
    number: int
    """Of the size, among the method's."""
    copy: int
    """1 for the largest size's second drafter, which shows what a process adds; else 0."""
    drafter: Drafter
    """Makes drafts of this size."""


class Visit(NamedTuple):
    """Steps of a knot in steps of vanilla's beside them, and what its prefill adds."""

    block: int
    """Number of the block."""
    thread_index: int
    """Index of the number of threads."""
    length_index: int
    """Index of the prompt's length."""
    knot: Knot
    """What was measured."""
    ratios: list[float]
    """Time of each step / vanilla's beside it."""
    rows: list[int]
    """Nodes of each step's tree."""
    contexts: list[int]
    """Tokens before each step."""
    start: float
    """What its prefill adds to vanilla's / vanilla's step."""


class RowTimes(NamedTuple):
    """Steps of the target by rows, at one length and with one number of threads."""

    ratios: FloatArray
    """Time of a step / vanilla's beside it, by `grids.STEP_ROWS` [rows]."""
    vanilla_s: float
    """Seconds of a step of vanilla."""


@dataclass
class Bench:
    """A loaded target with requests of three lengths, and what was measured so far."""

    target: Target
    clock: DeviceClock
    vanilla: Drafter
    knots: list[Knot]
    requests: list[Request]
    """By length, the shortest first."""
    threads: Threads
    """As vanilla decodes."""
    random: Random = field(default_factory=lambda: Random(0))
    """Draws the order of what is measured."""
    visits: list[Visit] = field(default_factory=list)
    """All visits of knots."""
    steps: list[FloatArray] = field(default_factory=list)
    """Per block, steps of the target [threads, lengths, rows]."""
    prefill: list[FloatArray] = field(default_factory=list)
    """Per block, vanilla's prefill in its steps at the same length [lengths]."""
    vanilla_s: list[float] = field(default_factory=list)
    """Per block, seconds of a step of vanilla at the middle length."""
    thread_counts: tuple[int, ...] = ()
    """Numbers of threads that are measured, vanilla's first; chosen when the bench is made."""
    answers: list[Sequence[int]] = field(default_factory=list)
    """Per request, the tokens of prompt and answer; made when the bench is made."""

    def __post_init__(self) -> None:
        """Choose the numbers of threads, and let vanilla answer the requests."""
        self.thread_counts = (self.threads.num,)
        if self.threads.chosen_by == "measured":
            usual_prompt = self.requests[self.middle_index].prompt_ids
            times = cores.step_times(self.target, usual_prompt, self.threads)
            best_for_most_rows = times.threads_at(max(grids.ROWS))
            if best_for_most_rows != self.threads.num:
                self.thread_counts += (best_for_most_rows,)
        for request in self.requests:
            completion = decode(self.target, self.vanilla, request)
            self.answers.append((*request.prompt_ids, *completion.token_ids))

    @property
    def middle_index(self) -> int:
        """Index of the middle length."""
        return len(self.requests) // 2

    def measure_block(self) -> None:
        """Measure everything once, at each length."""
        num_lengths = len(self.requests)
        num_threads = len(self.thread_counts)
        steps = np.empty((num_threads, num_lengths, len(grids.STEP_ROWS)))
        vanilla_s = np.empty(num_lengths)  # with vanilla's number of threads
        prefill = np.empty(num_lengths)
        for length_index in self.random.sample(range(num_lengths), num_lengths):
            for thread_index in range(num_threads):
                times = self._time_rows(length_index, thread_index)
                steps[thread_index, length_index] = times.ratios
                if thread_index == 0:
                    vanilla_s[length_index] = times.vanilla_s
            prefill[length_index] = self._time_drafts(length_index)
        # Ratios are to vanilla at the same length; the unit is vanilla at the middle one.
        middle_s = vanilla_s[self.middle_index]
        self.steps.append(steps * (vanilla_s / middle_s)[:, None])
        self.prefill.append(prefill)
        self.vanilla_s.append(float(middle_s))

    def _time_rows(self, length_index: int, thread_index: int) -> RowTimes:
        """Steps by rows, each number of rows between turns of vanilla."""
        usual_threads = self.thread_counts[0]
        num_sizes = len(grids.STEP_ROWS)
        order = self.random.sample(range(num_sizes), num_sizes)
        first_step = Turn(1, usual_threads, num_steps=1)  # is left out
        vanilla_turns = [Turn(1, usual_threads, VANILLA_STEPS) for _ in range(num_sizes + 1)]
        timed_turns = [
            Turn(grids.STEP_ROWS[size], self.thread_counts[thread_index], STEPS_PER_TURN)
            for size in order
        ]
        turns = [first_step, vanilla_turns[0]]
        for timed, vanilla in zip(timed_turns, vanilla_turns[1:], strict=True):
            turns += [timed, vanilla]
        drafter = TurnDrafter(turns, self.vanilla, self.clock, self.target)
        self._complete(drafter, length_index, usual_threads)
        ratios = np.empty(num_sizes)
        neighbours = pairwise(vanilla_turns)
        for size, timed, (before, after) in zip(order, timed_turns, neighbours, strict=True):
            unit_s = median([*before.settled_seconds, *after.settled_seconds])
            ratios[size] = median(timed.settled_seconds) / unit_s
        if thread_index == 0:
            ratios[0] = 1.0  # one row with vanilla's threads is vanilla, by definition
        vanilla_seconds = [seconds for turn in vanilla_turns for seconds in turn.settled_seconds]
        return RowTimes(ratios, median(vanilla_seconds))

    def _time_drafts(self, length_index: int) -> float:
        """Visit each knot with each number of threads, between visits of vanilla.

        Returns the time of vanilla's prefill in its steps.
        """
        thread_indices = range(len(self.thread_counts))
        pairs = [(knot, thread_index) for knot in self.knots for thread_index in thread_indices]
        before = self._visit(self.vanilla, length_index, 0)
        prefills = [before.prefill_s / median(before.seconds)]
        for knot, thread_index in self.random.sample(pairs, len(pairs)):
            timed = self._visit(knot.drafter, length_index, thread_index)
            after = self._visit(self.vanilla, length_index, 0)
            prefills.append(after.prefill_s / median(after.seconds))
            unit_s = median([*before.seconds, *after.seconds])
            vanilla_prefill_s = (before.prefill_s + after.prefill_s) / 2
            start_s = timed.prefill_s - vanilla_prefill_s + timed.start_s
            visit = Visit(
                block=len(self.steps),
                thread_index=thread_index,
                length_index=length_index,
                knot=knot,
                ratios=[step_s / unit_s for step_s in timed.seconds],
                rows=timed.rows,
                contexts=timed.contexts,
                start=start_s / unit_s,
            )
            self.visits.append(visit)
            before = after
        return median(prefills)

    def _visit(self, drafter: Drafter, length_index: int, thread_index: int) -> TimedDrafter:
        """Time the steps of a drafter, without the warm-up steps."""
        answer = self.answers[length_index]
        timed = TimedDrafter(drafter, self.clock, STEPS_PER_VISIT, answer)
        timed.prefill_s = self._complete(timed, length_index, self.thread_counts[thread_index])
        for per_step in (timed.seconds, timed.rows, timed.contexts):
            del per_step[:NUM_WARMUP_STEPS]
        return timed

    def _complete(self, drafter: Drafter, length_index: int, num_threads: int) -> float:
        """Complete a request until the drafter has enough; returns seconds of the prefill.

        The steps have `num_threads` threads, and the prefill has its own number.
        """
        cores.set_threads(self.threads.of_prefill)
        began_s = self.clock.now()
        prefill_s = 0.0

        def on_prefilled() -> None:
            nonlocal prefill_s
            prefill_s = self.clock.now() - began_s
            cores.set_threads(num_threads)

        with suppress(EnoughSteps):
            decode(self.target, drafter, self.requests[length_index], on_prefilled=on_prefilled)
        return prefill_s
