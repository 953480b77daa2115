"""The samples, and every contestant on each of them in turns.

Knows requests and completions. Knows nothing of what completes a request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from specbench.bench.plan import Plan
from specbench.bench.runner import Completer
from specbench.types import Record, Request, SampleKey

SIDES = ("official", "specbench")
METHODS = {"vanilla": "Vanilla", "eagle2": "EAGLE-2"}
"""Their titles by their names."""

Contestants: TypeAlias = Mapping[tuple[str, str], Completer]
"""What completes a request, by side and method."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt, as a request to either side."""

    task: str
    sample_id: str
    request: Request


@dataclass(frozen=True, slots=True)
class Measured:
    """What a side's method made of a sample."""

    side: str
    record: Record


def read_samples(plan: Plan) -> Iterator[Sample]:
    """The first turn of every prompt."""
    codec = plan.setup.codec
    for task, prompts in plan.prompts.items():
        for prompt in prompts:
            ids = codec.render([{"role": "user", "content": prompt.turns[0]}])
            request = Request(ids, plan.max_new_tokens, eos_ids=codec.eos_ids)
            yield Sample(task, prompt.sample_id, request)


def take_turns(
    samples: Sequence[Sample],
    contestants: Contestants,
    repeats: int,
    say: Callable[[str], object],
    until: float = math.inf,
) -> Iterator[Measured]:
    """Every contestant on every sample, one after the other, the first one rotating.

    No sample is begun after `until` on the monotonic clock, but for the first.
    """
    order = list(contestants)
    total = repeats * len(samples)
    for turn in range(total):
        if turn and time.monotonic() > until:
            say(f"The time is over: {total - turn} of {total} samples are left out.")
            return
        repeat, index = divmod(turn, len(samples))
        sample, first = samples[index], turn % len(order)
        speeds = []
        for side, method in order[first:] + order[:first]:
            done = contestants[side, method](sample.request)
            key = SampleKey(method, 0.0, sample.task, sample.sample_id, 0, repeat)
            speeds.append(f"{side} {method} {done.num_tokens / done.wall_s:.1f}")
            yield Measured(
                side,
                Record(
                    key, "ok", len(sample.request.prompt_ids), done.token_ids,
                    stop_reason=done.stop_reason, prefill_s=done.prefill_s,
                    decode_s=done.decode_s, accept_lengths=done.accept_lengths,
                ),
            )  # fmt: skip
        say(f"{turn + 1} of {total}: {sample.sample_id}, tokens/s: {', '.join(sorted(speeds))}")


def describe(one: Measured) -> dict[str, Any]:
    """A line of the result."""
    record = one.record
    return {
        "side": one.side, "method": record.key.method, "sample_id": record.key.sample_id,
        "repeat": record.key.repeat, "prompt_tokens": record.prompt_tokens,
        "seconds": record.wall_s, "accept_lengths": record.accept_lengths,
        "token_ids": record.token_ids,
    }  # fmt: skip
