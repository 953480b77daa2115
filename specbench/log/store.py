"""Read and write the files of a run. `run.json` is replaced; lines are appended to other files.

A line that was written survives a kill, a full disk and a second process. A line that one of these
cut short is removed before the next line is written. Files of lines that will not grow any more may
be compressed with gzip (`samples.jsonl.gz`, `trace.jsonl.gz`).
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from specbench.errors import RunFolderError, os_errors, printable_values
from specbench.log.amounts import huge_numbers
from specbench.log.audit import SAMPLES as SAMPLES
from specbench.log.audit import StoredAudit, read_audit, records_hash
from specbench.log.files import (
    LineFile,
    compressed_path,
    folder_errors,
    open_lines,
    write_whole,
)
from specbench.log.header import IMPORTED_SCHEMA, RunHeader, header_values
from specbench.log.line_checks import ImpossibleRecord, RecordCheck
from specbench.log.record import ImportedLine, RecordLine, to_line, to_record
from specbench.log.run import Run
from specbench.log.trace import TraceLine, to_trace_line
from specbench.types import Record, RecordKey

HEADER = "run.json"
TRACE = "trace.jsonl"

_MOST_SHOWN = 60
"""Error messages show at most this many characters of a wrong value."""

_decode_record = msgspec.json.Decoder(RecordLine).decode
_decode_imported = msgspec.json.Decoder(ImportedLine).decode
_decode_trace = msgspec.json.Decoder(TraceLine).decode

ContentT = TypeVar("ContentT")


class RunFolder:
    """The folder of a run, which one process at a time can open for writing.

    Use it as a context manager. The lock ends with the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = ExitStack()

    def __enter__(self) -> Self:
        """Make the folder, and open and lock its file of records.

        Raises:
            RunFolderError: the folder cannot be written, another process writes to it, or its
                records or traces are compressed.
        """
        with folder_errors(self.path):  # turns errors of the system into a RunFolderError
            self.path.mkdir(parents=True, exist_ok=True)
        for name in (SAMPLES, TRACE):
            compressed = compressed_path(self.path / name)  # the path with ".gz"
            if compressed.exists() and not (self.path / name).exists():
                raise RunFolderError(
                    f"{compressed} is compressed, so no line can be added.",
                    f"Unpack it first: gunzip {compressed}",
                )
        self._samples = self._open(SAMPLES)
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()

    def has_run(self) -> bool:
        """True if the folder already has a header.

        Raises:
            RunFolderError: it has records without a header.
        """
        if (self.path / HEADER).exists():
            return True
        if (self.path / SAMPLES).stat().st_size:
            raise RunFolderError(
                f"{self.path} has {SAMPLES}, but no {HEADER}, which describes the run.",
                f"Restore {HEADER}, or give another --output.",
            )
        return False

    def write_header(self, header: RunHeader) -> None:
        """Replace `run.json` as a whole."""
        self._samples.check_in_place()
        with folder_errors(self.path):
            write_whole(self.path / HEADER, header_json(header))

    def append(self, record: Record) -> None:
        """Add a record's trace, if it has one, then its line. An error leaves the files unchanged.

        Raises:
            RunFolderError: the disk is full, or the files were moved or removed.
        """
        if record.trace:
            self._trace.append(_line(to_trace_line(record)))
        self._samples.append(_line(to_line(record)))

    @cached_property
    def _trace(self) -> LineFile:
        return self._open(TRACE)

    def _open(self, name: str) -> LineFile:
        return self._files.enter_context(closing(LineFile(self.path / name)))


def header_json(header: RunHeader) -> bytes:
    """The content of `run.json`."""
    return msgspec.json.format(msgspec.json.encode(header_values(header)), indent=2) + b"\n"


def read_run(path: Path, *, is_lenient: bool = False) -> Run:
    """Read the run in a folder. A last line that a kill cut short is left out.

    If `is_lenient`, lines that no run can have written are also left out, and `left_out` names
    them.

    Raises:
        RunFolderError: there is no run, a value is missing, wrong or impossible, or the version of
            the files is newer.
    """
    header = read_header(path)
    record_check = RecordCheck(header)
    # Values of earlier lines -> themselves, so that equal values are in memory only once.
    shared_values: dict[Any, Any] = {}

    def read_record(content: bytes, line_number: int) -> Record:
        """The record of a line in JSON. Raises a ValueError if no run can have written it."""
        decode = _decode_imported if header.imported else _decode_record
        record_line = decode(content)
        record = to_record(record_line, shared_values)
        record_check.check(record_line, record.key, line_number)
        return record

    left_out: list[str] = []  # sentences; without this list, the first bad line raises
    all_records = list(_read_lines(path / SAMPLES, read_record, left_out if is_lenient else None))
    # A request that failed may have been repeated. The last line with its key counts.
    last_records = {record.key: record for record in all_records}
    records = tuple(record for record in all_records if last_records[record.key] is record)
    audit = _audit_of(path, len(records))  # None without one, or if it tested other records
    num_repeated = len(all_records) - len(records)
    return Run(header, records, path, tuple(left_out), num_repeated=num_repeated, audit=audit)


def _audit_of(path: Path, num_records: int) -> StoredAudit | None:
    """The last audit of the run in a folder, or None if it tested other records."""
    audit = read_audit(path)
    if audit is None or audit.num_records != num_records:  # from before the run was resumed
        return None
    return audit if audit.records_sha256 in ("", records_hash(path)) else None


def is_cut(path: Path) -> bool:
    """True if the last line of records of the run in a folder was cut short.

    Raises:
        RunFolderError: the run has no records, or they cannot be read.
    """
    samples = path / SAMPLES
    last_byte = b"\n"
    with os_errors(f"{samples} cannot be read", kind=RunFolderError), open_lines(samples) as file:
        while block := file.read(2**20):
            last_byte = block[-1:]
    return last_byte != b"\n"


def read_header(path: Path) -> RunHeader:
    """Read the header of the run in a folder.

    Raises:
        RunFolderError: there is no header, it cannot be read or has a newer version, or a value is
            missing, wrong or too large.
    """
    file = path / HEADER
    if path.is_file():
        raise RunFolderError(
            f"{path} is a file, not the folder of a run.",
            f"Give the folder that has {HEADER}. `specbench list runs` lists all runs.",
        )
    try:
        content = file.read_bytes()
        header_fields = msgspec.json.decode(content)  # any JSON value, a dict if it is a header
    except FileNotFoundError as error:
        raise RunFolderError(
            f"There is no run in {path}: it has no {HEADER}.",
            "See `specbench list runs`.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}", "Restore it.") from error
    schema = header_fields.get("schema") if isinstance(header_fields, dict) else None
    if type(schema) is not int or schema < 1:
        raise RunFolderError(f"{file} is not the header of a run.", "Restore it.")
    if schema > IMPORTED_SCHEMA:  # the newest version, which imported runs have
        raise RunFolderError(
            f"{path} was written by a newer specbench (schema {schema}, this version reads up to "
            f"{IMPORTED_SCHEMA}).",
            "Upgrade: git pull in its checkout, then pip install .",
        )
    for problem in huge_numbers(header_fields):
        raise RunFolderError(f"{file}: {problem}", "Restore or correct the file.")
    header_fields["id"] = path.resolve().name  # the folder may have been renamed or copied
    try:
        # `printable_values` replaces control characters in texts, and passwords in addresses.
        header = msgspec.convert(printable_values(header_fields), RunHeader)
    except msgspec.ValidationError as error:
        raise RunFolderError(
            f"{file}: {_reason(error, content)}", "Restore or correct the file."
        ) from error
    if (header.schema == IMPORTED_SCHEMA) != bool(header.imported):
        raise RunFolderError(
            f"{file}: schema {header.schema} contradicts the field imported.", "Restore it."
        )
    return header


def read_trace(path: Path) -> Iterator[TraceLine]:
    """Yield the traces of the run in a folder, one per record. Raise the errors of `read_run`.

    A kill between a trace and its record leaves a trace that the resumed run writes again.
    """
    keys: set[RecordKey] = set()
    for line in _read_lines(path / TRACE, lambda content, _: _decode_trace(content)):
        if line.key not in keys:
            keys.add(line.key)
            yield line


def _line(line: Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _read_lines(
    path: Path, read: Callable[[bytes, int], ContentT], left_out: list[str] | None = None
) -> Iterator[ContentT]:
    """Yield the result of `read` for each line of the file `path`, if there is such a file. `read`
    gets the line and its number, from 1.

    If `read` refuses a line (ValueError), a sentence about it is added to `left_out`.

    Raises:
        RunFolderError: the file cannot be read, or a line is refused and `left_out` is None.
    """
    # A context manager that turns errors of the system into a RunFolderError with these texts.
    unreadable = os_errors(f"{path} cannot be read", "Make it readable.", RunFolderError)
    with unreadable, suppress(FileNotFoundError), open_lines(path) as file:
        for line_number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # a kill cut the last line short: its request counts as not done
            try:
                parsed_line = read(line, line_number)
            except (ValueError, RecursionError) as error:
                problem = f"{path}, line {line_number}: {_reason(error, line)}"
                if left_out is None:
                    hint = (
                        "Restore the file, or delete the line and resume the run. "
                        "`specbench report --lenient` leaves such lines out."
                    )
                    raise RunFolderError(problem, hint) from error
                left_out.append(problem)
                continue
            yield parsed_line


def _reason(error: Exception, content: bytes) -> str:
    """The message of an error about a line or file whose JSON is `content`. It has the path and the
    text of the wrong value, such as '$.num_tokens: expected int, got str ("x")'.
    """
    if isinstance(error, ImpossibleRecord):
        return str(error)  # this message begins with the path, too
    # A message of msgspec: "Expected `int`, got `str` - at `$.num_tokens`".
    message, _, path = str(error).partition(" - at ")
    message = (message[:1].lower() + message[1:]).replace("`", "")
    if not path:
        return f"$: {message}"
    path = path.strip("`")  # such as $.phases.draft_s or $.token_ids[3]
    try:
        wrong_value = json.loads(content)
        # Each match is a field's name or a list's index, and the other group is empty.
        for name, index in re.findall(r"\.(\w+)|\[(.+?)\]", path):
            wrong_value = wrong_value[name or int(index)]
    except (ValueError, RecursionError):  # the path has "[...]", or the line is not JSON
        return f"{path}: {message}"
    shown_value = json.dumps(wrong_value)  # in ASCII
    if len(shown_value) > _MOST_SHOWN:
        shown_value = f"{shown_value[:_MOST_SHOWN]} ..."
    return f"{path}: {message} ({shown_value})"
