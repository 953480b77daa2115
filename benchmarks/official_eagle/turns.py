"""The samples, and measurements of all entries on them in turns.

An entry is a method of one side. Knows requests and completions, not what completes a request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from specbench.measure.plan import Plan
from specbench.types import Completion, Record, RecordKey, Request

SIDES = ("official", "specbench")
METHODS = {"vanilla": "Vanilla", "eagle2": "EAGLE-2"}
"""Name -> title."""

Complete: TypeAlias = Callable[[Request], Completion]
Entries: TypeAlias = Mapping[tuple[str, str], Complete]
"""(side, method) -> a function that completes a request."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt, as a request to either side."""

    task: str
    sample_id: str
    request: Request


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a sample on one side."""

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
    entries: Entries,
    repeats: int,
    say: Callable[[str], object],
    until: float = math.inf,
) -> Iterator[Measured]:
    """Run every entry on every sample, one after the other; the first one rotates.

    After `until` on the monotonic clock, no sample except the first begins.
    """
    order = list(entries)
    total = repeats * len(samples)
    for turn in range(total):
        if turn and time.monotonic() > until:
            say(f"Out of time: {total - turn} of {total} samples are skipped.")
            return
        repeat, index = divmod(turn, len(samples))
        sample, first = samples[index], turn % len(order)
        speeds = []
        for side, method in order[first:] + order[:first]:
            done = entries[side, method](sample.request)
            key = RecordKey(method, 0.0, sample.task, sample.sample_id, 0, repeat)
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
    """A sample of the result file."""
    record = one.record
    return {
        "side": one.side, "method": record.key.method, "sample_id": record.key.sample_id,
        "repeat": record.key.repeat, "prompt_tokens": record.prompt_tokens,
        "seconds": record.wall_s, "accept_lengths": record.accept_lengths,
        "token_ids": record.token_ids,
    }  # fmt: skip
