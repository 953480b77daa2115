"""Time whole steps of the target and of methods, block by block, beside steps of vanilla.

Every step runs in the engine's own loop. Right tokens are planted in the drafts, outside the timed
region, so that steps accept 0, 1 and 2 draft tokens in turn, whatever the weights.
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
from specbench.errors import checked_seconds
from specbench.log.machine import Threads
from specbench.measure.local import threads as cores
from specbench.settings import grids
from specbench.tune.timed import EnoughSteps, TimedDrafter, Turn, TurnDrafter
from specbench.types import Request

VANILLA_STEPS = 3
"""The number of steps of vanilla before and after each turn. The turn is compared with these steps.

All steps of a turn compute the same number of rows.
"""
STEPS_PER_TURN = 4
"""The number of steps of a turn. The first is left out, so the median is over three."""
STEPS_PER_VISIT = 10
"""The number of timed steps in each completion by a method."""
NUM_WARMUP_STEPS = 4
"""The number of first steps that are left out, since they read weights that are not cached yet."""


class TimedSize(NamedTuple):
    """A timed size of a method's drafts, with a drafter that makes drafts of this size."""

    label: str
    """The label of the method."""
    number: int
    """The index of the size among the method's sizes."""
    copy: int
    """1 for a second drafter of the largest size, which shows how far processes differ; else 0."""
    drafter: Drafter
    """Makes drafts of this size."""


class Visit(NamedTuple):
    """The times of a completion by the drafter of one size.

    The unit of all times is the step of vanilla just before and just after.
    """

    block: int
    """The number of the block, from 0."""
    thread_index: int
    """The index of the number of threads in `Bench.thread_counts`."""
    length_index: int
    """The index of the request in `Bench.requests`."""
    size: TimedSize
    ratios: list[float]
    """The time of each step / the time of vanilla's steps beside it."""
    rows: list[int]
    """The number of nodes of each step's tree."""
    contexts: list[int]
    """The number of tokens before each step."""
    start: float
    """(Time of the method's prefill - vanilla's prefill) / time of vanilla's step."""


class RowTimes(NamedTuple):
    """The times of the target's steps at one prompt length, with one number of threads."""

    ratios: FloatArray
    """Time of a step / time of vanilla's steps beside it, for each of `grids.STEP_ROWS` [rows]."""
    vanilla_s: float
    """The seconds of a step of vanilla."""


@dataclass
class Bench:
    """A loaded target, requests of three lengths, and what was measured so far."""

    target: Target
    clock: DeviceClock
    vanilla: Drafter
    sizes: list[TimedSize]
    requests: list[Request]
    """The requests, from the shortest prompt to the longest."""
    threads: Threads
    """The numbers of CPU threads that vanilla uses."""
    random: Random = field(default_factory=lambda: Random(0))
    """Draws the order of the measurements."""
    visits: list[Visit] = field(default_factory=list)
    """The visits of all sizes."""
    steps: list[FloatArray] = field(default_factory=list)
    """Per block: step time / vanilla's at the middle length [threads, lengths, rows]."""
    prefill: list[FloatArray] = field(default_factory=list)
    """Per block, the time of vanilla's prefill / vanilla's step at the same length [lengths]."""
    vanilla_s: list[float] = field(default_factory=list)
    """Per block, the seconds of a step of vanilla at the middle length."""
    thread_counts: tuple[int, ...] = ()
    """The numbers of threads to measure, vanilla's first. Chosen when the bench is made."""
    sequences: list[Sequence[int]] = field(default_factory=list)
    """Per request, the token ids of the prompt followed by those of vanilla's answer. They are
    computed when the bench is made.
    """

    def __post_init__(self) -> None:
        """Choose the numbers of CPU threads to measure, and let vanilla answer each request.

        Vanilla's number of threads is always measured. If runs choose their threads by measuring
        (`self.threads.chosen_by`), the number that is fastest for a step of the most rows is
        measured too.
        """
        self.thread_counts = (self.threads.num,)  # vanilla's number
        if self.threads.chosen_by == "measured":  # otherwise the user or a default decides
            middle_prompt_ids = self.requests[self.middle_index].prompt_ids
            # seconds of a step by rows (tokens that the step computes) and number of threads
            step_times = cores.step_times(self.target, middle_prompt_ids, self.threads)
            fastest_num_threads = step_times.threads_at(max(grids.ROWS))  # with the most rows
            if fastest_num_threads != self.threads.num:
                self.thread_counts += (fastest_num_threads,)  # vanilla's number stays first
        for request in self.requests:
            completion = decode(self.target, self.vanilla, request)
            self.sequences.append((*request.prompt_ids, *completion.token_ids))

    @property
    def middle_index(self) -> int:
        """The index of the middle length."""
        return len(self.requests) // 2

    def measure_block(self) -> None:
        """Measure one block: steps with all numbers of rows, and all drafts, at each prompt length.

        Both are measured with each number of threads. There is one request per prompt length, and
        the lengths come in a random order. The times of steps are appended to `self.steps`,
        `self.prefill` and `self.vanilla_s`, those of drafts to `self.visits`.
        """
        num_lengths = len(self.requests)
        num_thread_counts = len(self.thread_counts)
        # time of a step by threads, lengths and rows / time of vanilla's step at the same length
        step_ratios = np.empty((num_thread_counts, num_lengths, len(grids.STEP_ROWS)))
        vanilla_s = np.empty(num_lengths)  # seconds of vanilla's step [lengths]
        # time of vanilla's prefill / time of vanilla's step at the same length [lengths]
        prefill_ratios = np.empty(num_lengths)
        for length_index in self.random.sample(range(num_lengths), num_lengths):
            for thread_index in range(num_thread_counts):
                row_times = self._time_rows(length_index, thread_index)
                step_ratios[thread_index, length_index] = row_times.ratios
                if thread_index == 0:  # every call times vanilla; one time is enough
                    vanilla_s[length_index] = row_times.vanilla_s
            prefill_ratios[length_index] = self._time_drafts_and_prefill(length_index)
        # Stored steps of all lengths are ratios to vanilla's step at the middle length. The factors
        # are [lengths, 1].
        middle_vanilla_s = vanilla_s[self.middle_index]
        self.steps.append(step_ratios * (vanilla_s / middle_vanilla_s)[:, None])
        self.prefill.append(prefill_ratios)
        self.vanilla_s.append(float(middle_vanilla_s))

    def _time_rows(self, length_index: int, thread_index: int) -> RowTimes:
        """Time the target's steps with each number of rows in `STEP_ROWS`.

        Returns, per number of rows, the time of a step / the time of vanilla's steps beside it.
        Also returns the seconds of vanilla's step, the median over all of vanilla's turns.

        All steps run in one completion. A turn is a few steps with the same number of rows. Turns
        of vanilla and other turns alternate: vanilla, 12 rows, vanilla, 4 rows, vanilla, ...

        Args:
            length_index: index of the request in `self.requests`.
            thread_index: index in `self.thread_counts` of the number of CPU threads that the timed
                turns use. Vanilla's turns use vanilla's number.
        """
        vanilla_threads = self.thread_counts[0]
        num_threads = self.thread_counts[thread_index]
        num_row_counts = len(grids.STEP_ROWS)
        # indices in `STEP_ROWS`, in a random order
        row_indices = self.random.sample(range(num_row_counts), num_row_counts)
        # The time of the first step is not used, since it follows the prefill.
        first_turn = Turn(rows=1, num_threads=vanilla_threads, num_steps=1)
        vanilla_turns = [
            Turn(rows=1, num_threads=vanilla_threads, num_steps=VANILLA_STEPS)
            for _ in range(num_row_counts + 1)
        ]
        timed_turns = [
            Turn(rows=grids.STEP_ROWS[index], num_threads=num_threads, num_steps=STEPS_PER_TURN)
            for index in row_indices
        ]
        turns = [first_turn, vanilla_turns[0]]
        for timed_turn, vanilla_turn in zip(timed_turns, vanilla_turns[1:], strict=True):
            turns += [timed_turn, vanilla_turn]
        # The drafter takes the turns one after the other, and adds the seconds of each step to the
        # step's turn.
        turn_drafter = TurnDrafter(turns, self.vanilla, self.clock, self.target)
        self._complete(turn_drafter, length_index, vanilla_threads)
        ratios = np.empty(num_row_counts)  # in the order of STEP_ROWS
        # `settled_seconds` of a turn: the seconds of each of its steps but the first
        turns_and_neighbours = zip(row_indices, timed_turns, pairwise(vanilla_turns), strict=True)
        for row_index, timed_turn, (vanilla_before, vanilla_after) in turns_and_neighbours:
            vanilla_s = median([*vanilla_before.settled_seconds, *vanilla_after.settled_seconds])
            ratios[row_index] = median(timed_turn.settled_seconds) / vanilla_s
        if thread_index == 0:  # STEP_ROWS[0] is 1 row, which is vanilla's own step
            ratios[0] = 1.0
        vanilla_seconds = [seconds for turn in vanilla_turns for seconds in turn.settled_seconds]
        return RowTimes(ratios=ratios, vanilla_s=median(vanilla_seconds))

    def _time_drafts_and_prefill(self, length_index: int) -> float:
        """Time each size of each method's draft with each number of threads.

        Appends a `Visit` per size and number of threads to `self.visits`. Returns vanilla's prefill
        time / vanilla's step time, as the median over vanilla's completions.

        Each size with each number of threads completes the request once, in a random order. Vanilla
        completes it before and after each of them, always with vanilla's number of threads. The
        times of a size are divided by the step time of vanilla just before and just after.

        Args:
            length_index: index of the request in `self.requests`.
        """
        thread_indices = range(len(self.thread_counts))
        pairs = [(size, thread_index) for size in self.sizes for thread_index in thread_indices]
        # a drafter with vanilla's times: `prefill_s` of the prefill, `seconds` of each step
        vanilla_before = self._visit(self.vanilla, length_index, thread_index=0)
        prefill_ratios = [vanilla_before.prefill_s / median(vanilla_before.seconds)]
        for size, thread_index in self.random.sample(pairs, len(pairs)):
            # This drafter also has the rows (nodes) and the context (tokens before) of each step.
            timed_drafter = self._visit(size.drafter, length_index, thread_index)
            vanilla_after = self._visit(self.vanilla, length_index, thread_index=0)
            prefill_ratios.append(vanilla_after.prefill_s / median(vanilla_after.seconds))
            vanilla_s = median([*vanilla_before.seconds, *vanilla_after.seconds])  # of a step
            vanilla_prefill_s = (vanilla_before.prefill_s + vanilla_after.prefill_s) / 2
            # what the method adds to the target's prefill, and the drafter's prefill (`start_s`)
            extra_s = timed_drafter.prefill_s - vanilla_prefill_s + timed_drafter.start_s
            visit = Visit(
                block=len(self.steps),  # number of the block that is being measured, from 0
                thread_index=thread_index,
                length_index=length_index,
                size=size,
                ratios=[step_s / vanilla_s for step_s in timed_drafter.seconds],
                rows=timed_drafter.rows,
                contexts=timed_drafter.contexts,
                start=extra_s / vanilla_s,
            )
            self.visits.append(visit)
            vanilla_before = vanilla_after
        return median(prefill_ratios)

    def _visit(self, drafter: Drafter, length_index: int, thread_index: int) -> TimedDrafter:
        """Complete a request with a drafter. Returns the drafter with the times of its steps.

        The first steps, the warm-up, are left out. Tokens from `self.sequences` are planted in the
        drafts, so that some are accepted. `length_index` is the index of the request,
        `thread_index` that of the number of threads in `self.thread_counts`.
        """
        timed_drafter = TimedDrafter(
            drafter, self.clock, num_steps=STEPS_PER_VISIT, sequence=self.sequences[length_index]
        )
        num_threads = self.thread_counts[thread_index]
        timed_drafter.prefill_s = self._complete(timed_drafter, length_index, num_threads)
        for per_step in (timed_drafter.seconds, timed_drafter.rows, timed_drafter.contexts):
            del per_step[:NUM_WARMUP_STEPS]
        return timed_drafter

    def _complete(self, drafter: Drafter, length_index: int, num_threads: int) -> float:
        """Complete a request with a drafter. Returns the seconds of the target's prefill.

        There is no answer to return. The drafter times its steps, and then raises `EnoughSteps`,
        which ends the completion.

        Args:
            drafter: makes the drafts, and times the steps.
            length_index: index of the request in `self.requests`.
            num_threads: CPU threads of the steps; the prefill has `self.threads.of_prefill`.
        """
        cores.set_threads(self.threads.of_prefill)
        began_s = self.clock.now()
        prefill_s = 0.0  # set when the prefill has ended

        def on_prefilled() -> None:
            """Keep the seconds of the prefill, and set the threads of the steps."""
            nonlocal prefill_s
            prefill_s = checked_seconds(self.clock.now() - began_s, "a prefill")
            cores.set_threads(num_threads)

        with suppress(EnoughSteps):
            decode(self.target, drafter, self.requests[length_index], on_prefilled=on_prefilled)
        return prefill_s
