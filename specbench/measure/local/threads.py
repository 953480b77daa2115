"""The number of CPU threads of the engine: given, or the fastest for a step of the target.

It is chosen once, before the first timed step, beside whatever else runs on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from specbench.log.machine import Threads
from specbench.machine.threads import is_number_given, thread_counts, waiting

if TYPE_CHECKING:
    from specbench.engine.target import Target

PROMPT = (1,) * 32
LEAST_S, LEAST_STEPS = 0.1, 3
"""A number of threads is tried for at least this many seconds and steps."""
HOPELESS = 1.5
"""Fewer threads are not tried once a step takes this many times the best."""
EQUAL = 1.05
"""Steps this much slower than the fastest count as equal: a tree uses more threads than a token."""


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
    times = fastest(thread_counts(), lambda count: step_s(target, count))
    best = max(count for count, seconds in times.items() if seconds <= EQUAL * min(times.values()))
    torch.set_num_threads(best)
    shown = {str(count): round(seconds, 6) for count, seconds in times.items()}
    return Threads(best, "measured", waiting(), shown)


def fastest(counts: Iterable[int], measure: Callable[[int], float]) -> dict[int, float]:
    """Seconds of a step by number of threads, tried in this order until fewer only get slower."""
    times: dict[int, float] = {}
    for count in counts:
        times[count] = measure(count)
        if times[count] > HOPELESS * min(times.values()):
            break
    return times


def step_s(target: Target, num_threads: int) -> float:
    """Seconds of a step of the target for one token with this number of threads: the mean.

    Steps are repeated for LEAST_S seconds, and at least LEAST_STEPS times.
    """
    import torch

    from specbench.engine.attention import without_cudnn_attention
    from specbench.engine.tree import DraftTree

    torch.set_num_threads(num_threads)
    with torch.inference_mode(), without_cudnn_attention():
        target.prefill(PROMPT[: max(1, target.context - 1)], num_new=1)
        tree = DraftTree.chain(torch.ones(1, dtype=torch.long, device=target.device))
        target.forward(tree)  # a new pool of threads starts
        began, count, seconds = time.perf_counter(), 0, 0.0
        while count < LEAST_STEPS or seconds < LEAST_S:
            target.forward(tree)
            count, seconds = count + 1, time.perf_counter() - began
    return seconds / count
