"""Make the header of an imported run from the facts in its files. Missing facts are not made up."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import NamedTuple

from msgspec import structs

from specbench.log.backend import BlockHeader
from specbench.log.exchange.format import CountTokens, FileContent, Format, MethodAnswers
from specbench.log.exchange.rules import compare_counts
from specbench.log.exchange.source import SourceFile
from specbench.log.header import IMPORTED_SCHEMA, PromptsHeader, RunHeader
from specbench.log.imported import UNKNOWN_MACHINE, ImportedFigure, ImportedFile, ImportedHeader
from specbench.log.machine import UNKNOWN
from specbench.log.methods import MethodHeader
from specbench.log.model import ModelHeader
from specbench.log.run import BlockKey, block_key
from specbench.log.spec import SpecHeader, SpecValues
from specbench.types import Record

_LEAST_NAME = 3
"""A shorter common start of several names does not count as the model's name."""


class ImportedSource(NamedTuple):
    """A file that was read, and its answers."""

    label: str
    """Name of the file's method, as the user gave it."""
    source: SourceFile
    format: Format
    content: FileContent
    """The answers with their keys in the file, and the facts of the file."""
    records: Sequence[Record] = ()
    """The same answers with their keys in the run. Empty until the run has keys for them."""

    def method(self, record: Record) -> str:
        """The name of a record's method: the label, and the name within the file if it has one."""
        return " ".join(filter(None, (self.label, record.key.method)))


def make_header(
    sources: Sequence[ImportedSource],
    answers: Sequence[MethodAnswers],
    *,
    count_tokens: CountTokens | None,
    given: Mapping[str, str],
    temperature: float | None,
    command: Sequence[str],
) -> RunHeader:
    """Return the header of the run that has the answers of these files.

    `sources` are the files in order, and `answers` are the same records by method. `count_tokens`
    counts the tokens of a text, and is None without a tokenizer. `given` maps options to what the
    user gave. `temperature` is None if unknown. `command` has the arguments of the command.
    """
    records = [record for source in sources for record in source.records]
    # Name of a method for readers -> its name in records.
    spellings = {
        method_answers.method: method_answers.records[0].key.method for method_answers in answers
    }
    contents = [source.content for source in sources]
    values = _values(contents, records, given.get("model", ""))  # the run's options
    is_given = {  # option -> True if the files or the user give it (for the model, only the user)
        "temperatures": temperature is not None,
        "max_new_tokens": values.max_new_tokens is not None,
        "concurrency": bool(values.concurrency),
        "request_rates": bool(values.request_rates),
        "model": "model" in given,
    }
    averages = {source.format.average for source in sources}  # "totals", or "rates" (mean tokens/s)
    imported = ImportedHeader(
        files=tuple(map(_file, sources)),
        counting=_counting(sources, answers),
        arithmetic="; ".join(dict.fromkeys(source.format.arithmetic for source in sources)),
        average=averages.pop() if len(averages) == 1 else "totals",
        told=tuple(name for name in is_given if is_given[name]),
        given={**given},
        figures=tuple(_figures(sources, answers, count_tokens)),
        oddities=tuple(oddity for source in sources for oddity in source.source.oddities),
        findings=tuple(_findings(sources, answers)),
        lacks=_lacks(contents, values, is_given),
    )
    now = datetime.now(UTC).isoformat(timespec="seconds")  # of the import, not of the answers
    return RunHeader(
        schema=IMPORTED_SCHEMA,
        id="imported",
        status="complete",
        created=now,
        finished=now,
        command=tuple(command),
        spec=SpecHeader(values=values),
        environment=UNKNOWN_MACHINE,
        model=ModelHeader(name=values.model, label=values.model, source="", dtype=UNKNOWN),
        methods={spelling: _method(spelling, title) for title, spelling in spellings.items()},
        num_records=len(records),
        columns={values.tasks[0]: given.get("task", "Unknown task")},  # the only task
        prompts=tuple(_prompts(sources, values.tasks[0])),
        blocks=tuple(_blocks(sources)),
        imported=imported,
    )


def _values(contents: Sequence[FileContent], records: Sequence[Record], model: str) -> SpecValues:
    """The run's options that the files give. The other options have meaningless defaults."""
    budgets = {content.max_new_tokens for content in contents}
    return SpecValues(
        model=model or _shared_name([content.model for content in contents]),
        methods=tuple(dict.fromkeys(record.key.method for record in records)),
        tasks=(records[0].key.task,),
        temperatures=(records[0].key.temperature,),
        max_new_tokens=budgets.pop() if len(budgets) == 1 else None,
        repeats=1 + max(record.key.repeat for record in records),
        concurrency=tuple(sorted({record.key.concurrency for record in records} - {0})),
        request_rates=tuple(sorted({record.key.request_rate for record in records} - {0})),
    )


def _shared_name(names: Iterable[str]) -> str:
    """The common start of the models' names, since some files add the method to the name.

    Without a common start, it is a list of all names, or UNKNOWN without names. An empty name
    does not count.
    """
    given_names = sorted({*filter(None, names)})
    # The letters at each position of all names, up to the first position where they differ.
    positions = takewhile(lambda letters: len({*letters}) == 1, zip(*given_names, strict=False))
    shared = "".join(letters[0] for letters in positions)
    if len(given_names) > 1:
        shared = shared.rstrip("-_/. ")
    return shared if len(shared) >= _LEAST_NAME else ", ".join(given_names) or UNKNOWN


def _file(source: ImportedSource) -> ImportedFile:
    return ImportedFile(
        method=source.label,
        name=source.source.path.name,
        sha256=source.source.sha256,
        bytes=source.source.num_bytes,
        format=source.format.title,
        tool=source.format.tool,
        version=source.content.version,
    )


def _method(spelling: str, title: str) -> MethodHeader:
    """The header of a method in the files. It is unknown whether the method is lossless, so it is
    not marked as lossy.
    """
    return MethodHeader(spelling, title, options={}, is_lossless=True, weights=None)


def _counting(
    sources: Sequence[ImportedSource], answers: Sequence[MethodAnswers]
) -> dict[str, str]:
    """Method's name for readers -> counting rule of its first file."""
    return {
        method_answers.method: _files_of(method_answers, sources)[0].content.counting
        for method_answers in answers
    }


def _files_of(
    method_answers: MethodAnswers, sources: Sequence[ImportedSource]
) -> Sequence[ImportedSource]:
    """The files that have answers of a method."""
    spelling = method_answers.records[0].key.method  # the method's name in records
    return [
        source
        for source in sources
        if any(record.key.method == spelling for record in source.records)
    ]


def _figures(
    sources: Sequence[ImportedSource],
    answers: Sequence[MethodAnswers],
    count_tokens: CountTokens | None,
) -> Iterator[ImportedFigure]:
    """Yield the publishers' numbers: first those of single files, then those of methods, such as a
    speedup, which compare the answers of several files.

    Each format of a method's files computes the numbers of the method. `count_tokens` counts the
    tokens of a text, and is None without a tokenizer.
    """
    for source in sources:
        # A file's own numbers have no method yet. They get the label that the user gave the file.
        for figure in source.content.figures:
            yield structs.replace(figure, method=source.label)
    for method_answers in answers:
        files = _files_of(method_answers, sources)
        formats = {source.format.title: source.format for source in files}  # each format once
        for file_format in formats.values():
            if file_format.figures:
                yield from file_format.figures(method_answers, count_tokens)


def _findings(sources: Sequence[ImportedSource], answers: Sequence[MethodAnswers]) -> Iterator[str]:
    """Yield sentences about how the tools count, first for each file, then for each method's
    answers.
    """
    for source in sources:
        yield from (f"{source.label}: {finding}" for finding in source.content.findings)
    for method_answers in answers:
        yield from compare_counts(method_answers)


def _lacks(
    contents: Sequence[FileContent], values: SpecValues, is_given: Mapping[str, bool]
) -> tuple[str, ...]:
    """The facts that the files lack, without duplicates. `is_given["temperatures"]` is True if the
    temperature is known.
    """
    lacks = dict.fromkeys(lack for content in contents for lack in content.lacks)
    if not is_given["temperatures"]:
        lacks["the temperature"] = None
    if values.model == UNKNOWN:
        lacks["the model"] = None
    return (*lacks, "the machine", "the dtype")


def _prompts(sources: Sequence[ImportedSource], task: str) -> Iterator[PromptsHeader]:
    """Yield a description of the run's prompts, with their ids by category. Yield nothing if an
    answer has no category, because the prompts are then unknown. `task` is the run's only task.
    """
    # Category -> ids of its prompts, as the keys of a dict, which keeps their order.
    ids_by_category: dict[str, dict[str, None]] = defaultdict(dict)
    for source in sources:
        # The file's record has the category as its task; the run's record has the prompt's id.
        for file_record, run_record in zip(source.content.records, source.records, strict=True):
            ids_by_category[file_record.key.task][run_record.key.sample_id] = None
    if "" in ids_by_category:
        return
    num_prompts = len({sample_id for ids in ids_by_category.values() for sample_id in ids})
    yield PromptsHeader(
        task=task,
        title=task,
        source="imported",
        origin="the imported files",
        file_sha256=None,
        num_available=num_prompts,
        num_prompts=num_prompts,
        sha256="",
        categories={category: tuple(ids) for category, ids in ids_by_category.items()},
    )


def _blocks(sources: Sequence[ImportedSource]) -> Iterator[BlockHeader]:
    """Yield the blocks of the run. A block is the answers of a file that a server worked on
    together, with one method, task, pass and load. A block whose duration the file does not give is
    left out.
    """
    for source in sources:
        records_of_blocks: dict[BlockKey, list[Record]] = defaultdict(list)
        for record in source.records:
            records_of_blocks[block_key(record.key)].append(record)
        for key, records in records_of_blocks.items():
            measured = source.content.blocks.get(key.load)  # seconds, and the server's counters
            if measured is None:
                continue
            yield BlockHeader(
                method=key.method,
                temperature=key.temperature,
                task=key.task,
                repeat=key.repeat,
                duration_s=measured.duration_s,
                num_requests=len(records),
                num_failed=sum(not record.is_ok for record in records),
                num_tokens=sum(record.num_tokens for record in records),
                concurrency=key.load.concurrency,
                request_rate=key.load.request_rate,
                counters={**measured.counters},
            )
