"""A line of `samples.jsonl`, and the `Record` that it becomes."""

from dataclasses import fields as fields_of
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from specbench.errors import printable_values
from specbench.log.amounts import MOST_AMOUNT
from specbench.log.header import IMPORTED_SCHEMA, SCHEMA
from specbench.types import ImportedCounts, Phases, Record, RecordKey, Serving, StopReason

# Numbers within the ranges that a run can write. JSON has neither NaN nor infinity.
Whole = Annotated[int, Meta(ge=0, lt=2**31)]
Positive = Annotated[int, Meta(ge=1, lt=2**31)]
Large = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, le=MOST_AMOUNT)]

_SHOWN_FIELDS = ("method", "task", "sample_id", "origin", "error")
"""Names of the fields whose texts readers see, without control characters and passwords."""


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
    """Requests at once. Absent if there is no such load."""
    request_rate: Amount = 0
    """Requests per second. Absent if there is no such load."""

    def __post_init__(self) -> None:
        for name in _SHOWN_FIELDS:
            if name in self.__struct_fields__:
                force_setattr(self, name, printable_values(getattr(self, name)))

    @property
    def key(self) -> RecordKey:
        return RecordKey(**{name: getattr(self, name) for name in KeyFields.__struct_fields__})


class RecordLine(
    KeyFields, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA
):
    """One method's answer to one turn of one prompt."""

    status: Literal["ok", "error"]
    """error: the answer failed, and has no tokens or times."""
    prompt_tokens: Whole
    """Tokens of the prompt."""
    token_ids: tuple[Whole, ...]
    """Token ids of the answer, EOS included."""
    num_tokens: Whole
    """Number of tokens: 1 + sum(accept_lengths)."""
    text: str
    """Text of the answer."""
    stop_reason: StopReason | None
    """Reason for the answer's end: eos, budget (of tokens), or length (of the model's context)."""
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
    """Reason why the answer failed."""
    phases: Phases | None = None
    """Seconds by phase. Absent without --phases."""
    peak_memory_bytes: Large | None = None
    """Peak memory of the GPU. Absent on a CPU."""
    energy_j: Amount | None = None
    """Energy of the whole GPU in joules."""
    token_ends: tuple[Whole, ...] = ()
    """Number of characters of the text up to the end of each token. Absent if unknown."""
    num_paused: Whole = 0
    """Attempts during which the machine paused. Only older runs have it. If it is 1, the times are
    those of the second attempt.
    """
    is_paused: bool = False
    """True if the machine paused, so that the times are not valid."""
    serving: Serving | None = None
    """Numbers of an answer from a server. Absent otherwise."""
    draft_prefill_s: Amount | None = None
    """Part of decode_s in which the drafter read the prompt. Absent on a GPU."""
    outer_s: Amount | None = None
    """Seconds of the whole completion, measured by a second clock outside the decoding loop."""
    place: Whole | None = None
    """Position of the method in the order in which methods answered this request, from 0. Absent
    for servers.
    """
    origin: str = ""
    """Id of the run that the record was merged from. Absent if it was not merged."""
    worker: str = ""
    """Worker that completed the request. Absent without --ray."""


class ImportedLine(
    KeyFields,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="schema",
    tag=IMPORTED_SCHEMA,
):
    """An answer from another tool's file. Facts that the file lacks are absent."""

    status: Literal["ok", "error"]
    """error: the answer failed, and has no tokens."""
    num_tokens: Whole = 0
    """Tokens of the answer."""
    counted_tokens: Whole | None = None
    """Tokens as the publisher counts them. If absent, they are num_tokens."""
    num_emitted: Whole | None = None
    """Tokens that steps emitted."""
    num_steps: Whole | None = None
    """Steps after the prefill."""
    total_s: Amount | None = None
    """Seconds of the whole answer."""
    prefill_s: Amount | None = None
    """Seconds until the first token."""
    decode_s: Amount | None = None
    """Seconds from the first token to the last."""
    accept_lengths: tuple[Positive, ...] = ()
    """Tokens emitted per step."""
    prompt_tokens: Whole = 0
    """Tokens of the prompt."""
    token_ids: tuple[Whole, ...] = ()
    """Token ids of the answer."""
    text: str = ""
    """Text of the answer."""
    answer_hash: str = ""
    """Hash of the text, if the file has no text."""
    stop_reason: StopReason | None = None
    """Reason why the answer ended."""
    serving: Serving | None = None
    """Numbers of an answer from a server."""
    error: str | None = None
    """Reason why the answer failed."""


_COUNTS = tuple(field.name for field in fields_of(ImportedCounts))
"""Names of the fields of an imported line that a record has in its field `imported`."""
_KEY_FIELDS = KeyFields.__struct_fields__
_RECORD_FIELDS = sorted(set(RecordLine.__struct_fields__) & set(Record.__slots__))
"""Names of the fields that a record and its line share, except those of the key."""

_IMPORTED_FIELDS = sorted(set(ImportedLine.__struct_fields__) & set(Record.__slots__))
"""Names of the fields that an imported record and its line share, except those of the key."""

_LONG_FIELDS = ("token_ids", "text", "token_ends", "accept_lengths", "num_nodes")
_OFTEN_EQUAL = ("method", "temperature", "task", "sample_id", "origin", "worker", *_LONG_FIELDS)
"""Names of fields whose values are often equal in several lines, because methods give the same
tokens.
"""


def to_line(record: Record) -> RecordLine | ImportedLine:
    """The line of a record."""
    key_fields = {name: getattr(record.key, name) for name in _KEY_FIELDS}
    if record.imported:
        counts = {name: getattr(record.imported, name) for name in _COUNTS}
        fields = {name: getattr(record, name) for name in _IMPORTED_FIELDS}
        return ImportedLine(**key_fields, **fields, **counts)
    record_fields = {name: getattr(record, name) for name in _RECORD_FIELDS}
    return RecordLine(**key_fields, **record_fields, num_tokens=record.num_tokens)


def to_record(line: RecordLine | ImportedLine, shared_values: dict[Any, Any]) -> Record:
    """The record of a line.

    `shared_values` maps each value that earlier lines had in the fields `_OFTEN_EQUAL` to itself.
    The values of this line are added, so that equal values are one object and large runs fit into
    memory.
    """
    names = _IMPORTED_FIELDS if isinstance(line, ImportedLine) else _RECORD_FIELDS
    # Name of a field of the key or of the record -> content.
    fields = {name: getattr(line, name) for name in (*_KEY_FIELDS, *names)}
    for name in fields.keys() & _OFTEN_EQUAL:
        fields[name] = shared_values.setdefault(fields[name], fields[name])
    key = RecordKey(**{name: fields.pop(name) for name in _KEY_FIELDS})
    if isinstance(line, ImportedLine):
        counts = ImportedCounts(**{name: getattr(line, name) for name in _COUNTS})
        return Record(key=key, **fields, imported=counts)
    # If the machine paused during an attempt, older versions measured the answer again. They
    # recorded the second attempt. If several attempts are counted, the second was paused, too.
    if line.num_paused > 1:
        fields["is_paused"] = True
    return Record(key=key, **fields)
