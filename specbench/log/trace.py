"""A line of `trace.jsonl`: the draft trees of a traced record."""

import sys
from dataclasses import asdict, replace

from specbench.log.record import KeyFields
from specbench.types import Record, TracedStep


class TraceLine(KeyFields, frozen=True, kw_only=True, omit_defaults=True):
    """The traced steps of one record."""

    steps: tuple[TracedStep, ...]
    """The steps whose tree has log-probabilities."""


def to_trace_line(record: Record) -> TraceLine:
    """The line of a traced record."""
    return TraceLine(**asdict(record.key), steps=tuple(map(_finite, record.trace)))


def _finite(step: TracedStep) -> TracedStep:
    """The step with finite log-probabilities, because JSON would turn minus infinity into null."""
    lowest = -sys.float_info.max
    log_probs = tuple(
        None if log_prob is None else max(log_prob, lowest) for log_prob in step.log_probs
    )
    return replace(step, log_probs=log_probs)
