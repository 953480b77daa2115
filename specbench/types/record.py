"""Records of the answers that methods gave to requests, and the keys that identify them."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NamedTuple

from specbench.types.completion import Phases, Serving, StopReason, TracedStep


class RequestKey(NamedTuple):
    """Identity of a request, which every method answers."""

    temperature: float
    """Sampling temperature; 0 is greedy."""
    task: str
    """Name of the task."""
    sample_id: str
    """Id of the prompt."""
    turn: int
    """Turn of the chat, from 0."""
    repeat: int
    """Pass over the prompts, from 0."""
    concurrency: int = 0
    """Requests at once; 0 if there is no such load."""
    request_rate: float = 0
    """Requests per second; 0 if there is no such load."""


def seed_of(run_seed: int, key: RequestKey) -> int:
    """The seed for the draws of a request, which is the same for all methods and temperatures."""
    identity = (run_seed, key.task, key.sample_id, key.turn, key.repeat)
    digest = sha256(repr(identity).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits: a positive integer everywhere


@dataclass(frozen=True, slots=True)
class RecordKey:
    """Identity of one line of `samples.jsonl`: a method's answer to a request.

    `concurrency` or `request_rate` is the load of a server. Both are 0 for the engine in this
    process.
    """

    method: str
    """The method's full spelling with the options that were given: "pld:ngram=2"."""
    temperature: float
    """Sampling temperature; 0 is greedy."""
    task: str
    """Name of the task."""
    sample_id: str
    """Id of the prompt."""
    turn: int
    """Turn of the chat, from 0."""
    repeat: int
    """Pass over the prompts, from 0."""
    concurrency: int = 0
    """Requests at once."""
    request_rate: float = 0
    """Requests per second."""

    @property
    def request(self) -> RequestKey:
        return RequestKey(*(getattr(self, name) for name in RequestKey._fields))


@dataclass(frozen=True, slots=True)
class ImportedCounts:
    """Counts and time of an answer that another tool measured. None stands for a value that its
    file lacks.
    """

    num_tokens: int = 0
    """Tokens of the answer; 0 if it failed."""
    counted_tokens: int | None = None
    """Tokens as the publisher counts them; None if equal to `num_tokens`."""
    num_emitted: int | None = None
    """Tokens that steps emitted."""
    num_steps: int | None = None
    """Steps after the prefill."""
    total_s: float | None = None
    """Seconds of the whole answer. For a failed answer, the seconds that the file has."""
    answer_hash: str = ""
    """Hash of the text, if the file has no text."""

    @property
    def published_tokens(self) -> int:
        """Tokens as the publisher counts them."""
        return self.num_tokens if self.counted_tokens is None else self.counted_tokens


@dataclass(frozen=True, slots=True)
class Record:
    """One line of `samples.jsonl`, which is one method's answer to one request.

    A failed record has neither tokens nor times. None stands for a value that was not measured.
    """

    key: RecordKey
    """Method and request."""
    status: Literal["ok", "error"]
    """"ok", or "error" if the answer failed."""
    prompt_tokens: int
    """Tokens of the prompt. 0 if unknown, which is possible only in imported records."""
    token_ids: tuple[int, ...] = ()
    """Tokens of the answer, EOS included. Imported records may lack them."""
    text: str = ""
    """Text of the answer."""
    stop_reason: StopReason | None = None
    """The reason why the answer ended. None if it failed."""
    prefill_s: float | None = None
    """Seconds until the first token is on the host."""
    decode_s: float | None = None
    """Seconds from the first token to the last."""
    accept_lengths: tuple[int, ...] = ()
    """Tokens emitted per step: accepted draft tokens + 1; 1 for vanilla."""
    num_nodes: tuple[int, ...] = ()
    """Nodes of each step's tree."""
    seed: int = 0
    """Seed of the draws."""
    error: str | None = None
    """Reason of a failure."""
    phases: Phases | None = None
    """Seconds of the decode steps by phase."""
    peak_memory_bytes: int | None = None
    """Peak memory of the GPU."""
    energy_j: float | None = None
    """Energy of the whole GPU in joules."""
    trace: tuple[TracedStep, ...] = ()
    """Traced steps. They are written to a separate file and are not read back."""
    token_ends: tuple[int, ...] = ()
    """Characters of text up to the end of each token; empty in records of older versions."""
    is_paused: bool = False
    """True if the machine paused during the answer, so that its times are not valid."""
    serving: Serving | None = None
    """Figures of an answer from a server."""
    place: int | None = None
    """Position of the method in the order in which methods answered this request, from 0. None in
    records from servers or of older versions.
    """
    draft_prefill_s: float | None = None
    """The part of `decode_s` in which the drafter read the prompt. None on a GPU."""
    outer_s: float | None = None
    """Seconds of the whole completion by a second clock, outside the decoding loop."""
    origin: str = ""
    """Id of the run that it was merged from; empty except in merged runs."""
    worker: str = ""
    """Worker that completed it; empty except in runs on a cluster."""
    imported: ImportedCounts | None = None
    """Counts from another tool's file; None in records that specbench measured."""

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the answer. A server that sends only text also sends a count."""
        if self.imported:
            return self.imported.num_tokens
        reported = self.serving.reported_tokens if self.serving else None
        return len(self.token_ids) if reported is None else reported

    @property
    def wall_s(self) -> float | None:
        if self.prefill_s is None or self.decode_s is None:
            return self.imported.total_s if self.imported else None
        return self.prefill_s + self.decode_s
