"""Describe a format of another tool's results, and the content of its files.

A format is a module in `formats` with a `FORMAT`. A file's format is recognised by its content, not
by its name.
"""

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from specbench.errors import UserError
from specbench.log.exchange import formats
from specbench.log.exchange.source import Fields, SourceFile
from specbench.log.header import RunHeader
from specbench.log.imported import Average, ImportedFigure
from specbench.log.machine import UNKNOWN
from specbench.log.record import Whole
from specbench.log.run import Load
from specbench.types import ImportedCounts, Record, RecordKey


class MeasuredBlock(NamedTuple):
    """Requests that a server worked on without a break."""

    duration_s: float
    """Seconds in which the server worked on the requests."""
    counters: Mapping[str, float]
    """Growth of the server's counters, under specbench's names."""


@dataclass(slots=True, kw_only=True)
class FileContent:
    """The answers in a file, and facts about them."""

    records: list[Record]
    """The answers. In their keys, `method` is empty, or a name within the file such as "K=3".
    `task` is a category, or empty. `repeat` counts passes within the file from 0. The temperature
    is not used.
    """
    counting: str
    """The counting rule in words."""
    lacks: tuple[str, ...] = ()
    """Names of facts that the file lacks."""
    model: str = ""
    """Name of the model. Empty if unknown."""
    version: str = UNKNOWN
    """Version of the tool."""
    temperature: float | None = None
    """Sampling temperature. None if unknown."""
    max_new_tokens: int | None = None
    """The maximum number of tokens of an answer. None if unknown."""
    blocks: dict[Load, MeasuredBlock] = field(default_factory=dict)
    """Blocks of requests, by load."""
    figures: list[ImportedFigure] = field(default_factory=list)
    """Numbers of the file, recomputed from its answers. Their `method` is empty."""
    findings: list[str] = field(default_factory=list)
    """Sentences about how the file counts."""


@dataclass(frozen=True, slots=True)
class MethodAnswers:
    """All answers of a method, and the baseline's answers to compare them with."""

    method: str
    """Name of the method, as the user gave it."""
    records: Sequence[Record]
    baseline: str = ""
    """Name of the baseline. Empty without a baseline, and for the baseline itself."""
    baseline_records: Sequence[Record] = ()


class WrittenAnswers(NamedTuple):
    """The answers to write to a file, which are a method's answers in one pass at one load."""

    header: RunHeader
    """Header of their run."""
    records: Sequence[Record]
    load: Load


class StepCounts(NamedTuple):
    """The number of an answer's steps, and of the tokens that they emitted."""

    num_emitted: int
    num_steps: int


def steps_of(record: Record) -> StepCounts:
    """The tokens emitted by an answer's steps, and the number of steps. Both are 0 if it failed.

    Raises:
        UserError: the steps are unknown.
    """
    counts = record.imported  # None if specbench measured the answer
    if not record.is_ok:
        return StepCounts(0, 0)
    # An answer of our engine (`serving` is None) lists all its steps. A server may list none.
    if counts is None and (record.accept_lengths or record.serving is None):
        return StepCounts(sum(record.accept_lengths), len(record.accept_lengths))
    if counts is None or counts.num_emitted is None or counts.num_steps is None:
        raise UserError(
            f"The steps of {record.key.method} on {record.key.sample_id} are unknown.",
            "Choose a format without steps: vllm.",
        )
    return StepCounts(counts.num_emitted, counts.num_steps)


CountTokens = Callable[[str], int]
"""Counts the tokens of a text with the tokenizer that the user gave."""
Figures = Callable[[MethodAnswers, CountTokens | None], Iterable[ImportedFigure]]
"""Computes a publisher's numbers for a method, by the publisher's rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of other tools' result files."""

    title: str
    """Name that readers see."""
    tool: str
    """Tool that writes such files."""
    arithmetic: str
    """The publisher's arithmetic for the numbers that it prints, in words."""
    matches: Callable[[Fields], bool]
    """Takes the first JSON value of a file. Returns True if the file has this format."""
    read: Callable[[SourceFile], FileContent]
    """Reads the answers of a file."""
    average: Average = "totals"
    """The publisher's average of speeds."""
    figures: Figures | None = None
    """Computes the publisher's numbers. None for a format whose files contain them."""
    write: Callable[[WrittenAnswers], str] | None = None
    """Makes the text of a file with answers. None for a format that is only read."""
    needs_times: bool = False
    """True if a file needs the time to the first token of each answer."""
    ending: str = "jsonl"
    """The file name extension."""


@cache
def all_formats() -> Mapping[str, Format]:
    """Name of a format -> the format. The name is the module's, with hyphens."""
    names = [name for _, name, _ in pkgutil.iter_modules(formats.__path__)]
    modules = {name: import_module(f"{formats.__name__}.{name}") for name in names}
    return {
        name.replace("_", "-"): module.FORMAT
        for name, module in modules.items()
        if hasattr(module, "FORMAT")
    }


def format_of(source: SourceFile) -> str:
    """The name of a file's format, which is recognised by the file's first JSON value.

    Raises:
        UserError: the value fits no known format, or another value of the file is not an object.
    """
    first_value = source.entries[0]  # the first JSON value of the file
    for name, file_format in all_formats().items():
        if file_format.matches(first_value):
            for fields in source.entries:
                if not isinstance(fields.content, Mapping):
                    raise fields.error("expected an object, like the values before it")
            return name
    beginning = "a value that is not an object"
    if isinstance(first_value.content, Mapping):  # up to eight of its keys, for the message
        beginning = f"the keys {', '.join([*first_value.content][:8])}"
    titles = "; ".join(file_format.title for file_format in all_formats().values())
    raise first_value.error(f"no known format begins with {beginning}. Known: {titles}")


def has_format(source: SourceFile) -> bool:
    """True for a file of answers whose format is known."""
    return any(form.matches(source.entries[0]) for form in all_formats().values())


def answer_key(sample_id: str, *, turn: int = 0, **names: Any) -> RecordKey:
    """The key of an answer within its file. `names` are other fields of the key."""
    names = {"method": "", "task": "", "repeat": 0, **names}
    return RecordKey(temperature=0.0, sample_id=sample_id, turn=turn, **names)


def counts_from_drafts(
    tokens: int, num_accepted: int | None, num_drafts: int = 0, **more: Any
) -> ImportedCounts:
    """The counts of an answer of `tokens` tokens, with the steps that follow from its drafts.

    The prefill emits the first token. Each step emits its accepted draft tokens and one more. So
    the number of steps is the number of later tokens - accepted tokens, and at least the number of
    drafts, since a step has at most one draft. If this gives no steps for the later tokens, the end
    of the answer cut accepted tokens, and the steps are unknown. They are also unknown if
    `num_accepted` is None, because the server does not count accepted tokens. `more` has other
    fields of the counts.
    """
    num_emitted = max(tokens - 1, 0)
    num_steps = 0 if num_accepted is None else max(num_emitted - num_accepted, num_drafts)
    if num_emitted and not num_steps:
        return ImportedCounts(tokens, **more)
    return ImportedCounts(tokens, num_emitted=num_emitted, num_steps=num_steps, **more)


def with_drafts(record: Record, num_tokens: int, drafts: Fields, path: str = "") -> Record:
    """The record of an answer of `num_tokens` tokens, with the steps that follow from its drafts.

    vLLM counts the drafts of an answer. `path` is the path of these counts in `drafts`, which is
    empty or ends with a dot.

    Raises:
        UserError: the accepted tokens per step do not add up to those of the answer.
    """
    num_accepted = drafts.get(f"{path}num_accepted_draft_tokens", Whole, None)
    accepted_per_step = drafts.get(f"{path}per_step_accepted", list[Whole], [])
    if accepted_per_step and num_accepted not in (None, sum(accepted_per_step)):
        raise drafts.error(
            f"{path}per_step_accepted adds up to {sum(accepted_per_step)}, but "
            f"num_accepted_draft_tokens is {num_accepted}"
        )
    counts = counts_from_drafts(
        num_tokens, num_accepted, num_drafts=drafts.get(f"{path}num_spec_steps", Whole, 0)
    )
    emitted_per_step = tuple(accepted + 1 for accepted in accepted_per_step)
    # The list may lack steps without a draft. It is kept only if its totals are the answer's.
    totals = (sum(emitted_per_step), len(emitted_per_step))
    is_whole = totals == (counts.num_emitted, counts.num_steps)
    return replace(record, imported=counts, accept_lengths=emitted_per_step if is_whole else ())


def failed(record: Record, reason: str) -> Record:
    """The record of an answer that failed. It has no steps, and only two counts: the tokens as the
    publisher counts them, and the seconds.
    """
    counts = record.imported or ImportedCounts()
    published = ImportedCounts(counted_tokens=counts.published_tokens, total_s=counts.total_s)
    return replace(record, status="error", error=reason, imported=published, accept_lengths=())


def rate_figure(name: str, number: float, rule: str, unit: str = "", **more: Any) -> ImportedFigure:
    """A number of a file, for the file's method. `rule` says in words how it is computed."""
    return ImportedFigure(method="", name=name, value=number, rule=rule, unit=unit, **more)
