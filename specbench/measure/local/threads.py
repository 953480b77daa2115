"""The numbers of CPU threads of the engine: given, or the fastest.

Vanilla's is the fastest for a step of one token. All methods read prompts with one number, and
each decodes with its own. They are chosen once, before the first timed step, beside whatever
else runs on the machine, in at most five seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specbench.log.machine import Threads
from specbench.machine.threads import is_number_given, thread_counts, waiting

if TYPE_CHECKING:
    from specbench.engine.clock import Stopwatch
    from specbench.engine.target import Target
    from specbench.measure.local.trials import Trial

PROMPT = (1,) * 32
VANILLA_S, PREFILL_S, METHODS_S = 1.5, 1.0, 2.5
"""Seconds to choose vanilla's number, that of prefills, and those of all methods."""


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
    from specbench.measure.local.trials import Trial, set_threads

    counts = thread_counts()
    trial = Trial(counts, max(counts), VANILLA_S).measure(token_step(target))
    set_threads(trial.best)
    return Threads(trial.best, "measured", waiting(), _shown(trial))


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
    from specbench.measure.local.trials import Trial, TrialOver, TrialWatch, set_threads

    counts = thread_counts()
    reads = Trial(counts, found.num, PREFILL_S).measure(prefill)
    ends, groups = perf_counter() + METHODS_S, dict[int, Trial]()
    for method, size in rows.items():
        if size in groups:
            continue
        seconds = (ends - perf_counter()) / (len({*rows.values()}) - len(groups))
        trial = groups[size] = Trial(counts, found.num, seconds)
        has_steps = True
        while has_steps and trial.next() is not None:
            watch = TrialWatch(trial)
            with suppress(TrialOver, Exception):  # its samples will fail too
                decode(method, watch)
            has_steps = watch.num_steps > 0
    set_threads(found.num)
    return replace(
        found,
        prefill=reads.best,
        prefill_s=_shown(reads),
        methods={method: groups[size].best for method, size in rows.items()},
        method_step_s={method: _shown(groups[size]) for method, size in rows.items()},
    )


def _shown(trial: Trial) -> dict[str, float]:
    return {str(count): round(seconds, 6) for count, seconds in trial.medians.items()}


def token_step(target: Target) -> Callable[[], float]:
    """A function that times a step of the target for one token."""
    import torch

    from specbench.engine.attention import without_cudnn_attention
    from specbench.engine.tree import DraftTree

    with torch.inference_mode(), without_cudnn_attention():
        target.prefill(PROMPT[: max(1, target.context - 1)], num_new=1)
        tree = DraftTree.chain(torch.ones(1, dtype=torch.long, device=target.device))
        target.forward(tree)

    def step_s() -> float:
        with torch.inference_mode(), without_cudnn_attention():
            began = perf_counter()
            target.forward(tree)
            return perf_counter() - began

    return step_s


def reading(target: Target, prompt_ids: tuple[int, ...]) -> Callable[[], float]:
    """A function that times a prefill of the target."""
    import torch

    from specbench.engine.attention import without_cudnn_attention

    def prefill_s() -> float:
        with torch.inference_mode(), without_cudnn_attention():
            began = perf_counter()
            target.prefill(prompt_ids, num_new=1)
            return perf_counter() - began

    return prefill_s
