"""The numbers of CPU threads of the engine: given, or the fastest.

Vanilla's is the fastest for a step of one token. All methods read prompts with one number, and
each decodes with its own. They are chosen once, before the first timed step, beside whatever
else runs on the machine, in a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specbench.engine.clock import Stopwatch
from specbench.log.machine import Threads
from specbench.machine.threads import is_number_given, thread_counts, waiting
from specbench.measure.local.trial import Trial, TrialOver, TrialWatch
from specbench.measure.local.trial import set_threads as set_threads
from specbench.settings.grids import ROWS
from specbench.settings.step_times import StepTimes, rounded_times

if TYPE_CHECKING:
    from specbench.engine.target import Target


PROMPT = (1,) * 32
"""The prompt before a timed step of one token."""
ROW_S = 0.045
"""Seconds to time steps of one number of rows."""
NUM_STEPS = 7
"""Steps of one number of rows if the number of threads is given."""
VANILLA_S = 1.5
"""Seconds to choose vanilla's number."""
PREFILL_S = 1.0
"""Seconds to choose the number for prefills."""
METHODS_S = 2.5
"""Seconds to choose those of all methods."""
PAUSE_S = 0.5
"""The pause before a choice is repeated."""


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
    if is_number_given():
        return Threads(torch.get_num_threads(), "environment", waiting())
    if target.device.type != "cpu":
        return Threads(torch.get_num_threads(), "torch", waiting())
    counts = thread_counts()
    largest = counts[0]
    step_s = token_step(target)
    trial = _confirmed(lambda: Trial(counts, largest, VANILLA_S).measure(step_s), largest)
    set_threads(trial.best)
    return Threads(trial.best, "measured", waiting(), rounded_times(trial.medians))


def step_times(
    target: Target, prompt_ids: tuple[int, ...], chosen: Threads, every_rows: Sequence[int] = ROWS
) -> StepTimes:
    """Times of steps of the target by rows, and by threads if their number is measured here.

    The least of two rounds counts, so that another program's moment changes no row alone.
    """
    counts = thread_counts() if chosen.chosen_by == "measured" else [chosen.num]
    seconds: dict[int, dict[int, float]] = {}
    for rows in [*every_rows, *every_rows]:
        step_s = token_step(target, rows, prompt_ids)
        trial = Trial(counts, chosen.num, ROW_S)
        if len(counts) == 1:
            for _ in range(NUM_STEPS):
                trial.add(chosen.num, step_s())
        trial.measure(step_s)
        by_threads = seconds.setdefault(rows, {})
        for count, median_s in trial.medians.items():
            by_threads[count] = min(median_s, by_threads.get(count, median_s))
    set_threads(chosen.num)
    return StepTimes(seconds)


def choose_for_methods(
    chosen: Threads,
    prefill: Callable[[], float],
    decode: Callable[[str, Stopwatch], object],
    rows: Mapping[str, int],
) -> Threads:
    """Add the number of all prefills and of each method's decoding to vanilla's, `chosen`.

    Args:
        prefill: reads a usual prompt, and returns the seconds it took.
        decode: completes a request with a method, watched.
        rows: rows of a usual step by method. Methods with equally many share a number.
    """
    counts = thread_counts()
    vanilla = chosen.num
    prefills = _confirmed(lambda: Trial(counts, vanilla, PREFILL_S).measure(prefill), vanilla)
    seconds = METHODS_S / max(1, len({*rows.values()}))

    def decoding(method: str) -> Trial:
        trial = Trial(counts, vanilla, seconds)
        has_steps = True
        while has_steps and trial.next() is not None:
            watch = TrialWatch(trial)
            with suppress(TrialOver, Exception):  # its samples will fail too
                decode(method, watch)
            has_steps = watch.num_steps > 0
        return trial

    trials: dict[int, Trial] = {}
    for method, num_rows in rows.items():
        if num_rows not in trials:
            trials[num_rows] = _confirmed(partial(decoding, method), vanilla)
    set_threads(vanilla)
    return replace(
        chosen,
        prefill=prefills.best,
        prefill_s=rounded_times(prefills.medians),
        methods={method: trials[num_rows].best for method, num_rows in rows.items()},
        method_step_s={
            method: rounded_times(trials[num_rows].medians) for method, num_rows in rows.items()
        },
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
