"""One line of `samples.jsonl`, and the `Record` it becomes.

One line of `trace.jsonl`: the trees of a traced sample.
"""

import sys
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from specbench.errors import printable_values
from specbench.log.header import SCHEMA
from specbench.types import Phases, Record, RecordKey, Serving, StopReason, TracedStep

Whole = Annotated[int, Meta(ge=0, lt=2**31)]
Positive = Annotated[int, Meta(ge=1, lt=2**31)]
Large = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0)]
"""Numbers within the ranges that a run can write. JSON has neither NaN nor infinity."""
_LONG = ("token_ids", "text", "token_ends", "accept_lengths", "num_nodes")
_OFTEN_EQUAL = ("method", "temperature", "task", "sample_id", "origin", "worker", *_LONG)


class KeyFields(Struct, frozen=True):
    """The identity of a line of `samples.jsonl` or `trace.jsonl`."""

    method: str
    """Method with the options that were given."""
    temperature: Amount
    """Sampling temperature; 0 is greedy."""
    task: str
    """Name of the task."""
    sample_id: str
    """Id of the prompt."""
    turn: Whole
    """Turn of the chat, from 0."""
    repeat: Whole
    """Pass over the prompts, from 0."""
    concurrency: Whole = 0
    """Requests at once; absent if there is no such load."""
    request_rate: Amount = 0
    """Requests per second; absent if there is no such load."""

    def __post_init__(self) -> None:
        for name in ("method", "task", "sample_id"):
            force_setattr(self, name, printable_values(getattr(self, name)))

    @property
    def key(self) -> RecordKey:
        return RecordKey(**{name: getattr(self, name) for name in KeyFields.__struct_fields__})


class RecordLine(
    KeyFields, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA
):
    """The outcome of one method on one turn of one prompt."""

    status: Literal["ok", "error"]
    """error: it failed, and has no tokens or times."""
    prompt_tokens: Whole
    """Tokens of the prompt."""
    token_ids: tuple[Whole, ...]
    """Tokens of the answer; EOS is one of them."""
    num_tokens: Whole
    """Number of tokens: 1 + sum(accept_lengths)."""
    text: str
    """The answer in text."""
    stop_reason: StopReason | None
    """End token, token budget, or the model's context length."""
    prefill_s: Amount | None
    """Seconds until the first token is on the host."""
    decode_s: Amount | None
    """Seconds from the first token to the last."""
    accept_lengths: tuple[Positive, ...]
    """Tokens emitted per step: accepted draft tokens + 1; 1 for vanilla."""
    num_nodes: tuple[Positive, ...]
    """Nodes of each step's tree."""
    seed: Large
    """Seed of the draws."""
    error: str | None
    """Reason of a failure."""
    phases: Phases | None = None
    """Seconds by phase; absent without --phases."""
    peak_memory_bytes: Large | None = None
    """Peak memory of the GPU; absent on a CPU."""
    energy_j: Amount | None = None
    """Energy of the whole GPU in joules."""
    token_ends: tuple[Whole, ...] = ()
    """Characters of text up to the end of each token; absent if unknown."""
    num_paused: Whole = 0
    """Of older versions: attempts that paused; after 1, the times are of the second one."""
    is_paused: bool = False
    """The machine paused, so that the times say nothing."""
    serving: Serving | None = None
    """Figures of an answer from a server; else absent."""
    draft_prefill_s: Amount | None = None
    """Seconds of decode_s in which the drafter read the prompt; absent on a GPU."""
    outer_s: Amount | None = None
    """Seconds of the whole completion by a second clock, outside of the decoding loop."""
    place: Whole | None = None
    """Place of the method among those of the request, from 0; absent from servers."""
    origin: str = ""
    """Id of the run that it was merged from; absent if it was not."""
    worker: str = ""
    """Worker that completed it; absent without --ray."""

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "origin", printable_values(self.origin))
        if self.error is not None:
            force_setattr(self, "error", printable_values(self.error))


def to_line(record: Record) -> RecordLine:
    """The line of a record."""
    return RecordLine(
        **{name: getattr(record.key, name) for name in KeyFields.__struct_fields__},
        num_tokens=record.num_tokens,
        **{name: getattr(record, name) for name in _SAME},
    )


def to_record(line: RecordLine, known: dict[Any, Any]) -> Record:
    """The record of a line. Values that are `known` from other lines of the run become one
    object: most methods give the same tokens, and large runs must fit into memory.
    """
    values = {name: getattr(line, name) for name in (*KeyFields.__struct_fields__, *_SAME)}
    for name in _OFTEN_EQUAL:
        values[name] = known.setdefault(values[name], values[name])
    key = RecordKey(**{name: values.pop(name) for name in KeyFields.__struct_fields__})
    values["is_paused"] |= line.num_paused > 1
    return Record(key=key, **values)


_SAME = sorted(set(RecordLine.__struct_fields__) & set(Record.__slots__))
"""Fields that a record and its line share."""


class TraceLine(KeyFields, frozen=True, kw_only=True, omit_defaults=True):
    """The traced steps of one record."""

    steps: tuple[TracedStep, ...]
    """Steps whose tree has log-probabilities."""


def to_trace_line(record: Record) -> TraceLine:
    """The line of a traced record."""
    return TraceLine(**asdict(record.key), steps=tuple(map(_finite, record.trace)))


def _finite(step: TracedStep) -> TracedStep:
    """The step with log-probabilities that JSON can hold: minus infinity would become null."""
    least = -sys.float_info.max
    return replace(
        step, log_probs=tuple(p if p is None else max(p, least) for p in step.log_probs)
    )  # fmt: skip
