"""Choose the engine's numbers of CPU threads: the given numbers, or the fastest.

Vanilla's number is the fastest for a step of one token. All methods read prompts with the same
number, and each method decodes with its own. The numbers are chosen once, in a few seconds before
the first timed step, while the machine's other programs keep running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import fmean
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specbench.engine.clock import Stopwatch
from specbench.log.machine import Threads
from specbench.log.usage import BUSY_SHARE
from specbench.machine.cpu_sampler import read_moment, share_of_others
from specbench.machine.threads import is_number_given, thread_counts, waiting
from specbench.measure.local.trial import LEAST_S, Trial, TrialWatch
from specbench.measure.local.trial import set_threads as set_threads
from specbench.settings.grids import ROWS
from specbench.settings.step_times import FASTER, StepTimes, rounded_times
from specbench.types import BASELINE

if TYPE_CHECKING:
    from specbench.engine.target import Target


PROMPT = (1,) * 32
"""Token ids of the prompt before a timed step of one token."""
ROW_S = 0.045
"""Seconds in which steps of one number of rows are timed."""
NUM_STEPS = 7
"""If only one number of threads is tried, this many steps are timed for each number of rows."""
VANILLA_S = 1.5
"""Seconds of a trial for vanilla's number of threads. Its repetition takes as long again."""
PREFILL_S = 1.0
"""Seconds of a trial for the threads that prefills use. Its repetition takes as long again."""
METHODS_S = 2.5
"""Seconds of the trials for the methods' numbers of threads, all together. A trial's repetition
takes as long again.
"""
PAUSE_S = 0.5
"""Seconds of the pause before a trial is repeated."""
SUSTAINED_S = 1.0
"""Seconds in which steps are timed with each number of threads, if other programs are busy."""
SUSTAINED_STEPS = 10_000
"""The most steps timed with one number in `_sustained`, in case the clock stands still."""


def choose_threads(target: Target, asked: int | None, before: Threads | None = None) -> Threads:
    """Set torch's number of threads to a given number, or on a CPU to the fastest for vanilla.

    Returns the number, who chose it, and whether waiting threads spin or sleep. If the number is
    chosen here, the result also has the seconds of a step by number of threads.

    Args:
        target: the loaded model. On a CPU its step of one token is timed.
        asked: the user's number; None to choose.
        before: the choice of the run that is continued (--resume), which is kept. None for a new
            run.
    """
    import torch

    if asked is not None:
        torch.set_num_threads(asked)
        return Threads(asked, chosen_by="option", waiting=waiting())
    if before is not None:
        torch.set_num_threads(before.num)
        return before
    if is_number_given():  # by an environment variable
        return Threads(torch.get_num_threads(), chosen_by="environment", waiting=waiting())
    if target.device.type != "cpu":
        return Threads(torch.get_num_threads(), chosen_by="torch", waiting=waiting())
    counts = thread_counts()  # numbers of threads to try, the largest first
    largest = counts[0]
    time_step = token_step(target)  # runs a step of one token, and returns its seconds
    # A trial times steps for at most VANILLA_S seconds. The largest number wins unless a smaller
    # number is faster: then the trial is repeated.
    moment_before = read_moment()
    trial = _confirmed(lambda: Trial(counts, largest, VANILLA_S).measure(time_step), largest)
    others_share = share_of_others(moment_before, read_moment())  # of the processors' time, 0 to 1
    best, step_s = trial.best, trial.medians  # `step_s`: seconds of a step by number of threads
    if others_share > BUSY_SHARE and best > 1:
        # Other programs are busy. Try at most as many threads as there are free processors, and
        # finish the steps with one number before the next.
        most_threads = min(best, max(1, round((1 - others_share) * largest)))
        sustained_s = _sustained([count for count in counts if count <= most_threads], time_step)
        best = _fastest(sustained_s)
        step_s |= sustained_s
    set_threads(best)  # also starts the threads, outside timed steps
    return Threads(
        best,
        chosen_by="measured",
        waiting=waiting(),
        step_s=rounded_times(step_s),
        share_of_others=round(others_share, 3) if others_share > BUSY_SHARE else 0.0,
    )


def _sustained(counts: Sequence[int], time_step: Callable[[], float]) -> dict[int, float]:
    """Mean seconds of a step by number of threads, timed for SUSTAINED_S seconds per number.

    `counts` are the numbers of threads; `time_step` runs a step, and returns its seconds.

    A `Trial` changes the number at each step, and takes the median. While other programs are busy,
    the median hides a cost of many threads: the system prefers threads that have slept, so most
    steps are fast, and a few that wait for a thread take many times as long. The mean of steps
    timed in a row includes this cost.
    """
    mean_s = {}
    for count in counts:
        set_threads(count)
        steps_s: list[float] = []  # seconds of each step
        end_s = perf_counter() + SUSTAINED_S
        while not steps_s or (perf_counter() < end_s and len(steps_s) < SUSTAINED_STEPS):
            steps_s.append(time_step())
        mean_s[count] = fmean(steps_s)
    return mean_s


def _fastest(step_s: Mapping[int, float]) -> int:
    """The largest number of threads, unless the fastest is faster by more than a factor of FASTER.

    `step_s` has the seconds of a step by number of threads.
    """
    largest, fastest = max(step_s), min(step_s, key=step_s.__getitem__)
    return fastest if step_s[largest] > FASTER * step_s[fastest] else largest


def _counts_beside(chosen: Threads) -> list[int]:
    """Numbers of threads to try for steps other than vanilla's.

    `chosen` has vanilla's number. If other programs were busy when it was chosen, no larger number
    is tried.
    """
    counts = thread_counts()
    if chosen.share_of_others:
        return [count for count in counts if count <= chosen.num]
    return counts


def step_times(
    target: Target, prompt_ids: tuple[int, ...], chosen: Threads, row_counts: Sequence[int] = ROWS
) -> StepTimes:
    """The median seconds of the target's steps, by number of rows and number of threads.

    A row is a token that a step computes. Several numbers of threads are tried only if vanilla's
    number was measured. Each number of rows is timed twice, for ROW_S seconds (or for NUM_STEPS
    steps with a single number of threads). The smaller median counts, so that a short burst of
    another program does not slow only one number of rows.

    Args:
        target: the loaded model. Its step over a chain of draft tokens is timed.
        prompt_ids: the tokens before each step.
        chosen: vanilla's number of threads (`num`), and who chose it.
        row_counts: the numbers of rows to time.
    """
    # Numbers of threads to try.
    counts = _counts_beside(chosen) if chosen.chosen_by == "measured" else [chosen.num]
    step_s: dict[int, dict[int, float]] = {}  # median seconds by rows and number of threads
    for num_rows in [*row_counts, *row_counts]:
        time_step = token_step(target, num_rows, prompt_ids)  # runs a step, returns its seconds
        trial = Trial(counts, kept=chosen.num, seconds=ROW_S)
        if len(counts) == 1:  # nothing to choose: `trial.measure` would time no step
            for _ in range(NUM_STEPS):
                trial.add(chosen.num, time_step())
        trial.measure(time_step)
        step_s_by_threads = step_s.setdefault(num_rows, {})
        for count, median_s in trial.medians.items():
            step_s_by_threads[count] = min(median_s, step_s_by_threads.get(count, median_s))
    set_threads(chosen.num)
    return StepTimes(step_s)


def choose_for_methods(
    chosen: Threads,
    prefill: Callable[[], float],
    decode: Callable[[str, Stopwatch], object],
    rows: Mapping[str, int],
) -> Threads:
    """Choose the numbers of threads for prefills and for each method, and add them to `chosen`.

    Args:
        chosen: has vanilla's number. Prefills and methods keep it unless another number is faster.
        prefill: reads a usual prompt, and returns the seconds it took.
        decode: completes a request with the method of a label, timed by a stopwatch.
        rows: the rows (tokens) of the largest step so far, by the method's label. Vanilla is left
            out. Methods with equally many rows get the same number of threads.
    """
    rows = {label: num_rows for label, num_rows in rows.items() if label != BASELINE}
    counts = _counts_beside(chosen)  # numbers of threads to try
    usual = chosen.num  # vanilla's number
    # A trial times each number in turn. `_confirmed` repeats it if a smaller number than the usual
    # number wins.
    prefill_trial = _confirmed(lambda: Trial(counts, usual, PREFILL_S).measure(prefill), usual)
    trial_s = METHODS_S / max(1, len({*rows.values()}))  # each number of rows has a trial

    def try_decoding(method: str) -> Trial:
        """Complete the request with a method again and again, until its trial is over."""
        trial = Trial(counts, kept=usual, seconds=trial_s)
        has_steps = True  # False if a completion ends or fails without a timed step
        while has_steps and trial.next() is not None:  # None at the trial's end
            watch = TrialWatch(trial)  # times steps, and ends the completion with the trial
            with suppress(Exception):  # TrialOver; or the method failed, and its samples will too
                decode(method, watch)
            has_steps = watch.num_steps > 0
        return trial

    trials: dict[int, Trial] = {}  # by number of rows
    for method, num_rows in rows.items():
        if num_rows not in trials:
            trials[num_rows] = _confirmed(partial(try_decoding, method), usual)
    set_threads(usual)
    return replace(
        chosen,
        prefill=prefill_trial.best,  # a number of threads
        prefill_s=rounded_times(prefill_trial.medians),  # median seconds by number of threads
        methods={method: trials[num_rows].best for method, num_rows in rows.items()},
        method_step_s={
            method: rounded_times(trials[num_rows].medians) for method, num_rows in rows.items()
        },
    )


def _confirmed(run: Callable[[], Trial], usual: int) -> Trial:
    """Run a trial of numbers of threads, and confirm its choice.

    `run` runs a trial. If a number below the usual number wins, a second trial follows a moment
    later, and the trial with the larger choice counts, so that a slow moment of a core does not
    decide.
    """
    trial = run()
    if trial.best >= usual:
        return trial
    sleep(PAUSE_S)
    return max(trial, run(), key=lambda finished: finished.best)


def token_step(
    target: Target, rows: int = 1, prompt_ids: tuple[int, ...] = PROMPT
) -> Callable[[], float]:
    """Read a prompt, and return a function that runs a step after it and returns its seconds.

    A step computes a chain of `rows` draft tokens. The prompt is cut to fit into the context.
    """
    import torch

    from specbench.engine.layers.torch_attention import without_cudnn_attention
    from specbench.engine.tree import DraftTree

    with torch.inference_mode(), without_cudnn_attention():
        target.prefill(prompt_ids[: max(1, target.context - rows)], num_new=rows)
        # The tokens of the chain are arbitrary.
        tree = DraftTree.chain(torch.ones(rows, dtype=torch.long, device=target.device))
        target.forward(tree)  # untimed

    return _timed(lambda: target.forward(tree))


def reading(target: Target, prompt_ids: tuple[int, ...]) -> Callable[[], float]:
    """A function that prefills the target with a prompt, and returns the seconds that this took."""
    return _timed(lambda: target.prefill(prompt_ids, num_new=1))


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    """A function that calls `work` and returns its seconds. `work` computes with the target."""
    import torch

    from specbench.engine.layers.torch_attention import without_cudnn_attention

    def seconds() -> float:
        with torch.inference_mode(), without_cudnn_attention():
            began_s = perf_counter()
            work()
            return max(perf_counter() - began_s, LEAST_S)

    return seconds
