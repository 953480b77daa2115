"""One line of `samples.jsonl`, and the `Record` it becomes.

One line of `trace.jsonl`: the trees of a traced sample.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from specbench.errors import printable
from specbench.log.header import SCHEMA
from specbench.types import Phases, Record, RecordKey, Serving, StopReason, TracedStep, doc

Whole = Annotated[int, Meta(ge=0, lt=2**31)]
Positive = Annotated[int, Meta(ge=1, lt=2**31)]
Large = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0)]
"""Numbers within the ranges that a run can write. JSON has neither NaN nor infinity."""


class KeyFields(Struct, frozen=True):
    """The identity of a line of `samples.jsonl` or `trace.jsonl`."""

    method: Annotated[str, doc("method with the options that were given")]
    temperature: Annotated[Amount, doc("sampling temperature; 0 is greedy")]
    task: Annotated[str, doc("name of the task")]
    sample_id: Annotated[str, doc("id of the prompt")]
    turn: Annotated[Whole, doc("turn of the chat, from 0")]
    repeat: Annotated[Whole, doc("pass over the prompts, from 0")]
    concurrency: Annotated[Whole, doc("requests at once; absent if there is no such load")] = 0
    request_rate: Annotated[Amount, doc("requests per second; absent if there is no such load")] = 0

    def __post_init__(self) -> None:
        for name in ("method", "task", "sample_id"):
            force_setattr(self, name, printable(getattr(self, name)))

    @property
    def key(self) -> RecordKey:
        return RecordKey(**{name: getattr(self, name) for name in KeyFields.__struct_fields__})


class RecordLine(
    KeyFields, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA
):
    """The outcome of one method on one turn of one prompt."""

    status: Annotated[Literal["ok", "error"], doc("error: it failed, and has no tokens or times")]
    prompt_tokens: Annotated[Whole, doc("tokens of the prompt")]
    token_ids: Annotated[tuple[Whole, ...], doc("tokens of the answer; EOS is one of them")]
    num_tokens: Annotated[Whole, doc("number of tokens: 1 + sum(accept_lengths)")]
    text: Annotated[str, doc("the answer in text")]
    stop_reason: Annotated[
        StopReason | None, doc("end token, token budget, or the model's context length")
    ]
    prefill_s: Annotated[Amount | None, doc("seconds until the first token is on the host")]
    decode_s: Annotated[Amount | None, doc("seconds from the first token to the last")]
    accept_lengths: Annotated[
        tuple[Positive, ...],
        doc("tokens emitted per step: accepted draft tokens + 1; 1 for vanilla"),
    ]
    num_nodes: Annotated[tuple[Positive, ...], doc("nodes of each step's tree")]
    seed: Annotated[Large, doc("seed of the draws")]
    error: Annotated[str | None, doc("reason of a failure")]
    phases: Annotated[Phases | None, doc("seconds by phase; absent without --phases")] = None
    peak_memory_bytes: Annotated[Large | None, doc("peak memory of the GPU; absent on a CPU")] = (
        None
    )
    energy_j: Annotated[Amount | None, doc("energy of the whole GPU in joules")] = None
    token_ends: Annotated[
        tuple[Whole, ...], doc("characters of text up to the end of each token; absent if unknown")
    ] = ()
    num_paused: Annotated[
        Whole,
        doc("of older versions: attempts that paused; after 1, the times are of the second one"),
    ] = 0
    is_paused: Annotated[bool, doc("the machine paused, so that the times say nothing")] = False
    serving: Annotated[Serving | None, doc("figures of an answer from a server; else absent")] = (
        None
    )
    draft_prefill_s: Annotated[
        Amount | None,
        doc("seconds of decode_s in which the drafter read the prompt; absent on a GPU"),
    ] = None
    outer_s: Annotated[
        Amount | None,
        doc("seconds of the whole completion by a second clock, outside of the decoding loop"),
    ] = None
    place: Annotated[
        Whole | None,
        doc("place of the method among those of the request, from 0; absent from servers"),
    ] = None
    origin: Annotated[str, doc("id of the run that it was merged from; absent if it was not")] = ""
    worker: Annotated[str, doc("worker that completed it; absent without --ray")] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "origin", printable(self.origin))
        if self.error is not None:
            force_setattr(self, "error", printable(self.error))


def to_line(record: Record) -> RecordLine:
    """The line of a record."""
    return RecordLine(
        **{name: getattr(record.key, name) for name in KeyFields.__struct_fields__},
        num_tokens=record.num_tokens,
        **{name: getattr(record, name) for name in _SAME},
    )


class RecordReader:
    """Records of lines. Equal values become one object: most methods give the same tokens, and
    large runs must fit into memory.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def read(self, line: RecordLine) -> Record:
        share = self._share
        key = RecordKey(
            method=share(line.method), temperature=share(line.temperature), task=share(line.task),
            sample_id=share(line.sample_id), turn=line.turn, repeat=line.repeat,
            concurrency=line.concurrency, request_rate=line.request_rate,
        )  # fmt: skip
        return Record(
            key=key,
            status=line.status,
            prompt_tokens=line.prompt_tokens,
            token_ids=share(line.token_ids),
            text=share(line.text),
            stop_reason=line.stop_reason,
            prefill_s=line.prefill_s,
            decode_s=line.decode_s,
            accept_lengths=share(line.accept_lengths),
            num_nodes=share(line.num_nodes),
            seed=line.seed,
            error=line.error,
            phases=line.phases,
            peak_memory_bytes=line.peak_memory_bytes,
            energy_j=line.energy_j,
            token_ends=share(line.token_ends),
            is_paused=line.is_paused or line.num_paused > 1,
            serving=line.serving,
            place=line.place,
            draft_prefill_s=line.draft_prefill_s,
            outer_s=line.outer_s,
            origin=share(line.origin),
            worker=share(line.worker),
        )

    def _share(self, value: Any) -> Any:
        return self._known.setdefault(value, value)


_SAME = sorted(set(RecordLine.__struct_fields__) & set(Record.__slots__))
"""Fields that a record and its line share."""


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
