"""Checks of the lines of a run: what no run can have written is named by field and value.

Compares lines with the header. Types and ranges of single fields are part of `RecordLine`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict
from itertools import chain
from operator import gt
from typing import Any

from specbench.log.header import RunHeader
from specbench.log.record import RecordLine
from specbench.types import RecordKey


class ImpossibleRecord(ValueError):
    """A line that no run can have written. The message begins with the path of the field."""


class RecordCheck:
    """Checks the lines of one run one after the other, in the order of the file."""

    def __init__(self, header: RunHeader) -> None:
        values = header.spec.values
        self._budget, self._repeats = values.max_new_tokens, values.repeats or 1
        self._known: dict[str, Collection[Any]] = {
            "method": header.methods,
            "task": header.columns,
            "temperature": values.temperatures,
            "concurrency": (*values.concurrency, 0) if values.concurrency else (),
            "request_rate": (*values.request_rates, 0.0) if values.request_rates else (),
        }
        self._num_prompts = {one.task: one.num_prompts for one in header.prompts}
        self._samples: dict[str, set[str]] = {}
        self._turns: set[tuple[str, str, int]] = set()
        self._lines: dict[RecordKey, int] = {}

    def check(self, line: RecordLine, key: RecordKey, number: int) -> None:
        """Raise ImpossibleRecord for the first thing wrong with the line of this number."""
        for problem in chain(self._key_problems(key, number), _problems(line, self._budget)):
            raise ImpossibleRecord(f"$.{problem}")

    def _key_problems(self, key: RecordKey, number: int) -> Iterator[str]:
        for name, known in self._known.items():
            value = getattr(key, name)
            if known and value not in known:
                yield f"{name}: {value!r} is not one of the run's: {', '.join(map(str, known))}"
        if key.repeat >= self._repeats:
            yield f"repeat: {key.repeat}, but the run has {self._repeats} (from 0)"
        self._turns.add((key.task, key.sample_id, key.turn))
        if key.turn and (key.task, key.sample_id, key.turn - 1) not in self._turns:
            yield f"turn: {key.turn} of {key.sample_id!r}, but turn {key.turn - 1} is missing"
        samples = self._samples.setdefault(key.task, set())
        samples.add(key.sample_id)
        if len(samples) > (most := self._num_prompts.get(key.task, len(samples))):
            yield f"sample_id: {key.sample_id!r} is one more than the {most} of {key.task}"
        if (first := self._lines.setdefault(key, number)) != number:
            yield f"sample_id: {key.sample_id!r} of {key.method} is in line {first} already"


def _problems(line: RecordLine, budget: int | None) -> Iterator[str]:
    """The fault of the answer itself, if any."""
    num_tokens = len(line.token_ids)
    if line.serving and line.serving.reported_tokens is not None:
        num_tokens = line.serving.reported_tokens
    if line.num_tokens != num_tokens:
        yield f"num_tokens: {line.num_tokens}, but token_ids has {num_tokens}"
    if line.status == "error":
        if num_tokens or line.accept_lengths or line.prefill_s is not None:
            yield "status: 'error', but the line has tokens or times"
        return
    if line.prefill_s is None or line.decode_s is None:
        yield f"{'prefill_s' if line.prefill_s is None else 'decode_s'}: null in a line that is ok"
    for name, seconds in asdict(line.phases).items() if line.phases else ():
        if seconds < 0:
            yield f"phases.{name}: {seconds} is negative"
    emitted = 1 + sum(line.accept_lengths)
    has_steps = bool(line.accept_lengths) or line.serving is None
    if has_steps and emitted != num_tokens:
        yield f"accept_lengths: 1 + their sum is {emitted}, but num_tokens is {num_tokens}"
    if budget is not None and num_tokens > budget:
        yield f"num_tokens: {num_tokens} is more than the run's budget of {budget}"
    if line.token_ends and len(line.token_ends) != len(line.token_ids):
        yield f"token_ends: {len(line.token_ends)} ends, but token_ids has {len(line.token_ids)}"
    if line.num_nodes and len(line.num_nodes) != len(line.accept_lengths):
        steps = len(line.accept_lengths)
        yield f"num_nodes: {len(line.num_nodes)} steps, but accept_lengths has {steps}"
    is_larger = list(map(gt, line.accept_lengths, line.num_nodes))
    if any(is_larger):
        step = is_larger.index(True)
        length, nodes = line.accept_lengths[step], line.num_nodes[step]
        yield f"accept_lengths[{step}]: {length} tokens from a tree of {nodes} nodes"
    if line.method.partition(":")[0] == "vanilla" and set(line.accept_lengths) - {1}:
        yield f"accept_lengths: {max(line.accept_lengths)} in a line of vanilla, which drafts none"
