"""Convert files of other tools to one run. Each label is a method. Files with equal labels are
passes of the same method.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from specbench.errors import UserError, printable_values, unknown_name
from specbench.log.exchange.format import (
    CountTokens,
    MethodAnswers,
    all_formats,
    failed,
    format_of,
)
from specbench.log.exchange.mapping import FileMapping, mapped_format, mapping_of
from specbench.log.exchange.run_header import ImportedSource, make_header
from specbench.log.exchange.source import RESTORE, SourceFile, read_source
from specbench.log.header import RunHeader
from specbench.log.line_checks import RecordCheck
from specbench.log.record import ImportedLine, to_line
from specbench.log.run import Load, Run, load_of
from specbench.log.store import header_json
from specbench.types import BASELINE, Record

UNKNOWN_TASK = "unknown"
"""The task of answers if neither the user nor the files name one."""


class LabelledFile(NamedTuple):
    """A file to import."""

    label: str
    """Name of the file's method."""
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFacts:
    """Facts that the user gives about the files. A fact that is not given is empty or None."""

    baseline: str = ""
    """Label of the baseline. The default is "vanilla"."""
    model: str = ""
    task: str = ""
    temperature: float | None = None
    tokenizer: str = ""
    """Folder of the tokenizer that counts texts."""
    count_tokens: CountTokens | None = None
    """Counts the tokens of a text with that tokenizer."""
    url: str = ""
    """Address from which the files were taken."""
    mapping: FileMapping | None = None
    """The places of the answers in the files, if their format is not known."""

    @property
    def given(self) -> dict[str, str]:
        """The given facts, by the name of their option."""
        facts = {
            "baseline": self.baseline,
            "model": self.model,
            "task": self.task,
            "temperature": "" if self.temperature is None else f"{self.temperature:g}",
            "tokenizer": Path(self.tokenizer).name,
            "url": self.url,
        }
        return {option: fact for option, fact in facts.items() if fact}


def parse_file(argument: str) -> LabelledFile:
    """The label and the path in an argument of the command, which is LABEL=FILE or FILE.

    For FILE, the label is the file's name without its extension. An argument is FILE if it has a
    "/" before its "=", or if it is the path of a file. In labels, ":" and ",", which have a meaning
    in names of methods, become "-".
    """
    label, equals, name = argument.partition("=")
    if not equals or "/" in label or Path(argument).exists():
        label, name = "", argument
    label = printable_values(label or Path(name).stem)
    return LabelledFile(label.replace(":", "-").replace(",", "-"), Path(name))


def convert(
    files: Sequence[LabelledFile],
    facts: UserFacts,
    command: Sequence[str] = (),
    sources: Sequence[SourceFile] = (),
) -> Run:
    """Return the run with the answers of these files as records, in the files' order.

    `command` has the arguments of the command, for the header. `sources` are the contents of the
    files in the same order, if they were already read.

    Raises:
        UserError: a file cannot be read, has no known format or contradicts itself, or no file has
            the label of the baseline.
    """
    sources = sources or [read_source(file.path) for file in files]
    read_files = [
        _read(source, file.label, facts.mapping)
        for file, source in zip(files, sources, strict=True)
    ]
    _refuse_copies(read_files)
    # The method of each record of all files: the label, then the name within the file, if any.
    method_names = [
        read_file.method(record) for read_file in read_files for record in read_file.content.records
    ]
    methods = [*dict.fromkeys(method_names)]  # without duplicates
    baseline = _baseline(facts.baseline, methods)
    temperature = _temperature(read_files, facts.temperature)  # None if unknown
    # The files with records that have the run's keys, in the order of `method_names`.
    imported_sources = _with_keys_of_run(read_files, baseline, facts.task, temperature or 0.0)
    all_records = [record for source in imported_sources for record in source.records]
    by_method: dict[str, list[Record]] = defaultdict(list)  # method -> its records
    for method, record in zip(method_names, all_records, strict=True):
        by_method[method].append(record)
    answers = [
        MethodAnswers(method, records)
        if method == baseline
        else MethodAnswers(method, records, baseline, by_method.get(baseline, ()))
        for method, records in by_method.items()
    ]
    header = make_header(
        imported_sources,
        answers,
        count_tokens=facts.count_tokens,
        given=facts.given,
        temperature=temperature,
        command=command,
    )
    run = Run(header, tuple(all_records))
    _refuse_impossible(run)
    return run


def _refuse_impossible(run: Run) -> None:
    """Raise UserError if the run could not be read after it is written, for example because an
    answer occurs twice or a number is too large. The header and each record are encoded, decoded
    and checked as when a run is read.
    """
    record_check = RecordCheck(run.header)
    subject = "The files"  # what is being checked, for the message of an error
    try:
        msgspec.json.decode(header_json(run.header), type=RunHeader)
        for number, record in enumerate(run.records, start=1):
            key = record.key
            subject = f"Record {number} ({key.sample_id}, turn {key.turn + 1} of {key.method})"
            content = msgspec.json.encode(to_line(record))
            record_check.check(msgspec.json.decode(content, type=ImportedLine), key, number)
    except ValueError as error:  # from msgspec, or an ImpossibleRecord
        raise UserError(f"{subject}: {error}", RESTORE) from error


def _read(source: SourceFile, label: str, mapping: FileMapping | None) -> ImportedSource:
    """Read the answers of a file with the user's mapping, or else with a shipped mapping that fits
    the file, or else with the file's format.

    Raises:
        UserError: the file has no known format, is damaged, or has no answers.
    """
    mapping = mapping or mapping_of(source, "answers")
    file_format = mapped_format(mapping) if mapping else all_formats()[format_of(source)]
    content = file_format.read(source)
    if not content.records:
        raise source.error("", "the file has no answers")
    return ImportedSource(label, source, file_format, content)


def _refuse_copies(read_files: Sequence[ImportedSource]) -> None:
    """Raise UserError if a file is given twice."""
    paths: dict[str, Path] = {}  # hash of a file -> its path
    for read_file in read_files:
        source = read_file.source
        if source.sha256 in paths:
            raise UserError(
                f"{source.path} is {paths[source.sha256]} or a copy of it.", "Give each file once."
            )
        paths[source.sha256] = source.path


def _baseline(label: str, methods: Sequence[str]) -> str:
    """The name of the baseline, or an empty text. `label` is empty if the user gave none.

    Raises:
        UserError: no method has the name `label`, or a method that is not the baseline has the name
            that is reserved for the baseline.
    """
    if label and label not in methods:
        raise unknown_name("label", label, methods)
    if label and label != BASELINE and BASELINE in methods:
        raise UserError(
            f"The label {BASELINE} is reserved for the baseline, which here is {label}.",
            f"Give the files of {BASELINE} another label.",
        )
    return label or (BASELINE if BASELINE in methods else "")


def _temperature(read_files: Sequence[ImportedSource], option: float | None) -> float | None:
    """The temperature that the user or the files give, or None if neither gives one.

    `option` is the temperature that the user gave, or None.

    Raises:
        UserError: several temperatures are given, or the option is negative or not finite.
    """
    # temperature -> the name of a file that gives it, or of the option
    temperatures = {
        read_file.content.temperature: read_file.source.path.name
        for read_file in read_files
        if read_file.content.temperature is not None
    }
    if option is not None:
        if not 0 <= option < math.inf:
            raise UserError(f"--temperature {option} is not a temperature.", "Give 0 or more.")
        temperatures.setdefault(option, "--temperature")
    if len(temperatures) > 1:
        texts = [f"{temperature:g} ({name})" for temperature, name in temperatures.items()]
        raise UserError(
            f"The files have several temperatures: {', '.join(texts)}.",
            "Convert the files of each temperature separately.",
        )
    return next(iter(temperatures), None)


def _with_keys_of_run(
    read_files: Sequence[ImportedSource], baseline: str, task: str, temperature: float
) -> list[ImportedSource]:
    """The files in order. Their `records` get the keys that they have in the run.

    `baseline` is the baseline's name, or empty. The baseline's records get the name BASELINE.
    `task` is empty if unknown. If the task is known, questions get the ids that they have in
    specbench's own runs, such as "mt_bench/81". The passes over the prompts (`repeat`) of a method
    at a load (requests at once, or per second) are numbered consecutively over all files. An answer
    that has no tokens, but did not fail, becomes a failed record and is noted. All records get the
    `temperature`.
    """
    prefix = f"{task}/" if task else ""
    # (method, load) -> passes in the files before this one
    num_earlier_passes: dict[tuple[str, Load], int] = defaultdict(int)
    imported_sources = []
    for read_file in read_files:
        records: list[Record] = []
        # (method, load) -> passes in this file
        num_passes: dict[tuple[str, Load], int] = defaultdict(int)
        for record in read_file.content.records:
            method = read_file.method(record)
            method_and_load = method, load_of(record.key)
            num_passes[method_and_load] = max(num_passes[method_and_load], record.key.repeat + 1)
            key = replace(
                record.key,
                method=BASELINE if method == baseline else method,
                task=task or UNKNOWN_TASK,
                sample_id=f"{prefix}{record.key.sample_id.removeprefix(prefix)}",
                temperature=temperature,
                repeat=record.key.repeat + num_earlier_passes[method_and_load],
            )
            if record.is_ok and not record.num_tokens:
                read_file.source.note(
                    f"sample {record.key.sample_id}, turn {record.key.turn + 1}",
                    "it has no tokens, and counts as failed",
                )
                record = failed(record, "it has no tokens")
            records.append(replace(record, key=key))
        for method_and_load, num_in_file in num_passes.items():
            num_earlier_passes[method_and_load] += num_in_file
        imported_sources.append(read_file._replace(records=records))
    return imported_sources
