"""One line of `trace.jsonl`: the trees of a traced sample."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import Annotated

from specbench.log.record import KeyFields
from specbench.types import Record, TracedStep, doc


class TraceLine(KeyFields, frozen=True, kw_only=True, omit_defaults=True):
    """The traced steps of one record."""

    steps: Annotated[tuple[TracedStep, ...], doc("steps whose tree has log-probabilities")]


def to_trace_line(record: Record) -> TraceLine:
    """The line of a traced record."""
    return TraceLine(**asdict(record.key), steps=tuple(map(_finite, record.trace)))


def _finite(step: TracedStep) -> TracedStep:
    """The step with log-probabilities that JSON can hold: minus infinity would become null."""
    least = -sys.float_info.max
    return replace(
        step, log_probs=tuple(p if p is None else max(p, least) for p in step.log_probs)
    )  # fmt: skip
