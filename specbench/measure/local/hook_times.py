"""Count the seconds that methods spend outside timed completions, for the run's header."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Literal

from msgspec.structs import replace

from specbench.log.backend import HookTimes
from specbench.measure.base import outer_clock
from specbench.types import Completion


@contextmanager
def counted_hook(
    hooks: MutableMapping[str, HookTimes], method: str, name: Literal["remember", "forget"]
) -> Iterator[None]:
    """Add the seconds of the block to a hook's total in `hooks`, which has an entry per method.

    `method` is the method's label; `name` names the hook.
    """
    began_s = outer_clock()
    try:
        yield
    finally:
        times = hooks.get(method, HookTimes())
        total_s = getattr(times, f"{name}_s") + max(0.0, outer_clock() - began_s)
        hooks[method] = replace(times, **{f"{name}_s": total_s})


def counted_completion(
    hooks: MutableMapping[str, HookTimes], method: str, complete: Callable[[], Completion]
) -> Completion:
    """Complete a request that is not a sample, as in the warm-up, and count its time.

    Adds the seconds, the steps and the prefill to the method's entry in `hooks`, which has an entry
    per label. A completion that fails adds its seconds and the prefill, but no steps.
    """
    began_s = outer_clock()
    num_steps = 0
    try:
        completion = complete()
        num_steps = len(completion.accept_lengths)  # one length per step
        return completion
    finally:
        times = hooks.get(method, HookTimes())
        hooks[method] = replace(
            times,
            untimed_s=times.untimed_s + max(0.0, outer_clock() - began_s),
            untimed_steps=times.untimed_steps + num_steps,
            untimed_prefills=times.untimed_prefills + 1,
        )
