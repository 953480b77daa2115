"""The numbers of CPU threads of the engine: given, or the fastest.

Vanilla's is the fastest for a step of one token. All methods read prompts with one number, and
each decodes with its own. They are chosen once, before the first timed step, beside whatever
else runs on the machine, in a few seconds.

A `Trial` times steps with several numbers in turn, until one is known to be the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specbench.engine.clock import Phase, Stopwatch
from specbench.log.machine import Threads
from specbench.machine.threads import is_number_given, thread_counts, waiting
from specbench.settings.quick_rule import ROWS, StepTimes, shown

if TYPE_CHECKING:
    from specbench.engine.target import Target


FASTER = 1.05
"""A number stays unless another is faster by this factor."""
HOPELESS, LEAST_STEPS = (1.5, 10.0), (7, 2)
"""A number is dropped once it takes 1.5 times the best in 7 steps of both, or 10 times in 2."""
MOST_STEPS = 200
"""A number is tried for no more steps."""
LEVEL = 0.01
"""Chance that the median ratio of two numbers is on the other side of `FASTER`."""
PROMPT = (1,) * 32
ROW_S, STEPS = 0.045, 7
"""Seconds to time steps of one number of rows, and their number if threads are given."""
VANILLA_S, PREFILL_S, METHODS_S, PAUSE_S = 1.5, 1.0, 2.5, 0.5
"""Seconds to choose vanilla's number, the number for prefills and those of all methods, and the
pause before a choice is repeated.
"""


class Trial:
    """Seconds of steps with several numbers of threads, for at most `seconds`.

    `kept` stays unless another number is faster by more than `FASTER`. That is tested by the
    signs of differences between neighbours in time, so that a few steps that waited for
    another program do not matter.
    """

    def __init__(self, counts: Sequence[int], kept: int, seconds: float) -> None:
        self._counts = [kept, *(count for count in counts if count != kept)]
        self._times: dict[int, list[float]] = {count: [] for count in self._counts}
        self._ends = perf_counter() + seconds

    def next(self) -> int | None:
        """The number to try next; None if the choice is made, or the time is over."""
        turn = min(self._counts, key=lambda count: len(self._times[count]))
        num_steps = [len(self._times[count]) for count in self._counts]
        is_over = perf_counter() > self._ends or num_steps[0] >= MOST_STEPS
        if is_over or len(num_steps) < 2 or (len({*num_steps}) == 1 and self._choose()[1]):
            return None
        return turn

    def add(self, count: int, seconds: float) -> None:
        """Keep the time of a step, and drop numbers that are far from the best.

        Fewer threads than a number that is far behind a larger one are not tried. If the
        number that is kept is dropped, the best takes its place.
        """
        self._times[count].append(seconds)
        medians, times = self.medians, self._times
        best = min(medians, key=medians.__getitem__)
        for one, own in medians.items():
            num_steps = min(len(times[one]), len(times[best]))
            is_far = any(
                num_steps >= least and own > factor * medians[best]
                for factor, least in zip(HOPELESS, LEAST_STEPS, strict=True)
            )
            if one in self._counts and is_far:
                least = one if best > one else 0
                kept = best if one == self._counts[0] else self._counts[0]
                others = [c for c in self._counts if c not in (kept, one) and c > least]
                self._counts = [kept, *others]

    def measure(self, seconds: Callable[[], float]) -> Trial:
        """Fill it with the times that `seconds` returns."""
        while (count := self.next()) is not None:
            set_threads(count)
            self.add(count, seconds())
        return self

    @property
    def best(self) -> int:
        """The number chosen so far, or one that is ten times as fast: one step is enough to
        show that.
        """
        best, medians = self._choose()[0], self.medians
        fastest = min(medians, key=medians.__getitem__, default=best)
        is_far = fastest != best and medians[best] > HOPELESS[1] * medians[fastest]
        return fastest if is_far else best

    @property
    def medians(self) -> dict[int, float]:
        """Median seconds by number of threads, of those that were tried."""
        return {count: median(times) for count, times in self._times.items() if times}

    def _choose(self) -> tuple[int, bool]:
        """The best number so far, and True if more steps would not change it."""
        best, is_settled = self._counts[0], True
        for count in self._counts[1:]:
            is_faster = _is_faster(self._times[count], self._times[best])
            best = count if is_faster else best
            is_settled &= is_faster is not None
        return best, is_settled


def _is_faster(times: Sequence[float], others: Sequence[float]) -> bool | None:
    """True if the median of `others` / `times` is above `FASTER`; None if it is unclear."""
    from scipy.special import bdtr, bdtrc

    ratios = [other / own for own, other in zip(times, others, strict=False)]
    above = sum(ratio > FASTER for ratio in ratios)
    if above and bdtrc(above - 1, len(ratios), 0.5) < LEVEL:
        return True
    return False if ratios and bdtr(above, len(ratios), 0.5) < LEVEL else None


class TrialOver(Exception):
    """Ends the completion whose steps were tried."""


class TrialWatch(Stopwatch):
    """Times the steps of a completion for a trial, and changes the number between them."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._began = 0.0
        self._count: int | None = None  # in the first step, which reads the prompt too
        self.num_steps = 0

    def lap(self, phase: Phase) -> None:
        if phase != "host":
            return
        if self._count is not None:
            self._trial.add(self._count, perf_counter() - self._began)
            self.num_steps += 1
        self._count = self._trial.next()
        if self._count is None:
            raise TrialOver
        set_threads(self._count)
        self._began = perf_counter()


def set_threads(count: int) -> None:
    """Set torch's number of threads. Their pool starts in an operation that nobody waits for."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
        torch.ones(1 << 16).add_(1)


def choose_threads(target: Target, asked: int | None, before: Threads | None = None) -> Threads:
    """Set torch's number of threads, and say who chose it.

    Args:
        target: its step for one token is timed on a CPU.
        asked: the user's number; None to choose.
        before: the choice of the run that goes on, which is kept.
    """
    import torch

    if asked is not None:
        torch.set_num_threads(asked)
        return Threads(asked, "option", waiting())
    if before is not None:
        torch.set_num_threads(before.num)
        return before
    if is_number_given() or target.device.type != "cpu":
        return Threads(
            torch.get_num_threads(), "environment" if is_number_given() else "torch", waiting()
        )
    counts, step_s = thread_counts(), token_step(target)  # the most threads first
    trial = _confirmed(lambda: Trial(counts, counts[0], VANILLA_S).measure(step_s), counts[0])
    set_threads(trial.best)
    return Threads(trial.best, "measured", waiting(), shown(trial.medians))


def step_times(
    target: Target, prompt_ids: tuple[int, ...], found: Threads, every_rows: Sequence[int] = ROWS
) -> StepTimes:
    """Times of steps of the target by rows, and by threads if their number is measured here.

    The least of two rounds counts, so that another program's moment changes no row alone.
    """
    counts = thread_counts() if found.chosen_by == "measured" else [found.num]
    seconds = dict[int, dict[int, float]]()
    for rows in [*every_rows] * 2:
        step_s = token_step(target, rows, prompt_ids)
        trial = Trial(counts, found.num, ROW_S)
        for _ in range(STEPS * (len(counts) == 1)):
            trial.add(found.num, step_s())
        trial.measure(step_s)
        before = seconds.get(rows, {})
        seconds[rows] = before | {n: min(s, before.get(n, s)) for n, s in trial.medians.items()}
    set_threads(found.num)
    return StepTimes(seconds)


def choose_for_methods(
    found: Threads,
    prefill: Callable[[], float],
    decode: Callable[[str, Stopwatch], object],
    rows: Mapping[str, int],
) -> Threads:
    """Add the number of all prefills and of each method's decoding to vanilla's, `found`.

    Args:
        prefill: reads a usual prompt, and returns the seconds it took.
        decode: completes a request with a method, watched.
        rows: rows of a usual step by method. Methods with equally many share a number.
    """
    counts, usual = thread_counts(), found.num
    reads = _confirmed(lambda: Trial(counts, usual, PREFILL_S).measure(prefill), usual)
    seconds, groups = METHODS_S / max(1, len({*rows.values()})), dict[int, Trial]()

    def decoding(method: str) -> Trial:
        trial, has_steps = Trial(counts, usual, seconds), True
        while has_steps and trial.next() is not None:
            watch = TrialWatch(trial)
            with suppress(TrialOver, Exception):  # its samples will fail too
                decode(method, watch)
            has_steps = watch.num_steps > 0
        return trial

    for method, size in rows.items():
        if size not in groups:
            groups[size] = _confirmed(partial(decoding, method), usual)
    set_threads(found.num)
    return replace(
        found,
        prefill=reads.best,
        prefill_s=shown(reads.medians),
        methods={method: groups[size].best for method, size in rows.items()},
        method_step_s={method: shown(groups[size].medians) for method, size in rows.items()},
    )


def _confirmed(run: Callable[[], Trial], usual: int) -> Trial:
    """A trial. If it leaves the usual number for a smaller one, it is repeated a moment later, and
    the larger choice stays: a slow moment of one core does not decide.
    """
    first = run()
    if first.best >= usual:
        return first
    sleep(PAUSE_S)
    return max(first, run(), key=lambda trial: trial.best)


def token_step(
    target: Target, rows: int = 1, prompt_ids: tuple[int, ...] = PROMPT
) -> Callable[[], float]:
    """A function that times a step of the target over a chain of rows."""
    import torch

    from specbench.engine.layers.torch_attention import without_cudnn_attention
    from specbench.engine.tree import DraftTree

    with torch.inference_mode(), without_cudnn_attention():
        target.prefill(prompt_ids[: max(1, target.context - rows)], num_new=rows)
        tree = DraftTree.chain(torch.ones(rows, dtype=torch.long, device=target.device))
        target.forward(tree)

    return _timed(lambda: target.forward(tree))


def reading(target: Target, prompt_ids: tuple[int, ...]) -> Callable[[], float]:
    """A function that times a prefill of the target."""
    return _timed(lambda: target.prefill(prompt_ids, num_new=1))


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    """A function that does the work of a target, and returns its seconds."""
    import torch

    from specbench.engine.layers.torch_attention import without_cudnn_attention

    def seconds() -> float:
        with torch.inference_mode(), without_cudnn_attention():
            began = perf_counter()
            work()
            return perf_counter() - began

    return seconds
