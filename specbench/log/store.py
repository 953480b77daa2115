"""The run folder: `run.json`, written whole; `samples.jsonl` and `trace.jsonl`, only appended to.

A line that was written survives a kill, a full disk and a second process. A line that one of
them cut short is dropped before the next one is written.

Lines are compared with the header when they are read: values that no run can have written are
refused, by field and value. Types and ranges of single fields are part of `RecordLine`.
"""

import fcntl
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain
from operator import gt
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct, structs

from specbench.errors import RunFolderError, os_errors, printable_values
from specbench.log.audit import SAMPLES as SAMPLES
from specbench.log.audit import read_audit, records_hash
from specbench.log.files import LineFile, end_of_last_line, folder_errors, write_whole
from specbench.log.header import SCHEMA, RunHeader, header_values
from specbench.log.record import RecordLine, TraceLine, to_line, to_record, to_trace_line
from specbench.log.run import Run
from specbench.types import Record, RecordKey

HEADER, TRACE = "run.json", "trace.jsonl"
_MOST_SHOWN = 60
_POOLED = re.compile(r"run-\d+")
_decode_record = msgspec.json.Decoder(RecordLine).decode


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


T = TypeVar("T")


class RunFolder:
    """A run folder opened for writing, by one process at a time.

    Use it as a context manager. The lock ends with the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = ExitStack()

    def __enter__(self) -> Self:
        with folder_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._samples = self._open(SAMPLES)
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.close()

    def has_run(self) -> bool:
        """True if the folder has a header already.

        Raises:
            RunFolderError: it has records without a header.
        """
        if (self.path / HEADER).exists():
            return True
        if (self.path / SAMPLES).stat().st_size:
            raise RunFolderError(
                f"{self.path} has {SAMPLES}, but no {HEADER} that says what they are.",
                f"Restore {HEADER}, or give another --output.",
            )
        return False

    def write_header(self, header: RunHeader) -> None:
        """Replace `run.json` as a whole."""
        self._samples.check_in_place()
        with folder_errors(self.path):
            write_whole(self.path / HEADER, header_json(header))

    def append(self, record: Record) -> None:
        """Add one line, after one of its trace if it has one. After an error a file is as before.

        Raises:
            RunFolderError: the disk is full, or the files are no longer where they were.
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

    Lenient, lines that no run can have written are left out too, and named in `left_out`.

    Raises:
        RunFolderError: there is no run, a value is missing, wrong or impossible, or the schema is
            newer.
    """
    header, left_out = read_header(path), list[str]()
    check, known = RecordCheck(header).check, dict[Any, Any]()

    def read_record(content: bytes, number: int) -> Record:
        line = _decode_record(content)
        record = to_record(line, known)
        check(line, record.key, number)
        return record

    records = tuple(_read_lines(path / SAMPLES, read_record, left_out if is_lenient else None))
    audit = read_audit(path)
    if audit and audit.num_records != len(records):  # of the run before it went on
        audit = None
    if audit and audit.records_sha256 not in ("", records_hash(path)):  # of other records
        audit = None
    return Run(header, records, path, tuple(left_out), audit)


def is_cut(path: Path) -> bool:
    """True if the last line of the run in a folder has no end.

    Raises:
        RunFolderError: the run has no records, or they cannot be read.
    """
    samples = path / SAMPLES
    with os_errors(f"{samples} cannot be read", kind=RunFolderError), samples.open("rb") as file:
        return end_of_last_line(file.fileno()) != file.seek(0, 2)


def read_runs(path: Path, *, is_lenient: bool = False) -> Run:
    """The run in a folder, or the pool of the runs in its subfolders (`specbench run --runs`).

    Raises:
        RunFolderError: there is no run, or one cannot be read.
        UserError: the runs in the folder are not runs of the same work on one machine.
    """
    runs = [read_run(folder, is_lenient=is_lenient) for folder in single_runs([path])]
    return runs[0] if runs[0].path == path else pooled_in(path, runs)


def pooled_in(path: Path, runs: Sequence[Run]) -> Run:
    """The pool of the runs in a folder's subfolders, which has the folder's name."""
    pooled = Run.pooled(runs)
    return replace(pooled, header=structs.replace(pooled.header, id=path.resolve().name))


def read_header(path: Path) -> RunHeader:
    """Read the header of the run in a folder; errors as for `read_run`."""
    file = path / HEADER
    try:
        values = msgspec.json.decode(content := file.read_bytes())
    except FileNotFoundError as error:
        raise RunFolderError(
            f"There is no run in {path}: it has no {HEADER}.",
            "See `specbench list runs` for the runs there are.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}", "Restore it.") from error
    schema = values.get("schema") if isinstance(values, dict) else None
    if type(schema) is not int or schema < 1:
        raise RunFolderError(f"{file} is not the header of a run.", "Restore it.")
    if schema > SCHEMA:
        raise RunFolderError(
            f"{path} was written by a newer specbench (schema {schema}, this version reads up to "
            f"{SCHEMA}).",
            "Upgrade: git pull in its checkout, then pip install .",
        )
    values["id"] = path.resolve().name  # a copied folder goes by its own name
    try:
        return msgspec.convert(printable_values(values), RunHeader)
    except msgspec.ValidationError as error:
        raise RunFolderError(
            f"{file}: {_reason(error, content)}", "Restore or correct the file."
        ) from error


def read_trace(path: Path) -> Iterator[TraceLine]:
    """The traced records of the run in a folder; errors as for `read_run`.

    A kill between a trace and its record leaves a trace that the resumed run writes again.
    """
    decode, seen = msgspec.json.Decoder(TraceLine).decode, set[RecordKey]()
    for line in _read_lines(path / TRACE, lambda content, _: decode(content)):
        if line.key not in seen:
            seen.add(line.key)
            yield line


def pooled_folders(path: Path) -> list[Path]:
    """The folders of a pool's runs, "run-1" and so on; none in another folder."""
    folders = [file.parent for file in path.glob(f"*/{HEADER}")]
    is_pool = all(_POOLED.fullmatch(folder.name) for folder in folders)
    if not is_pool or (path / HEADER).exists():
        return []
    return sorted(folders, key=lambda folder: int(folder.name[4:]))


def single_runs(paths: Iterable[Path]) -> list[Path]:
    """The folders of runs, with the runs of a pool in the place of its own."""
    return [one for path in paths for one in pooled_folders(path) or [path]]


def list_runs(root: Path) -> dict[Path, RunHeader | RunFolderError]:
    """The headers of the run folders in `root`, newest first; last, errors of unreadable ones."""
    found, unreadable = dict[Path, RunHeader](), dict[Path, RunFolderError]()
    for file in sorted(root.glob(f"*/{HEADER}")):
        try:
            found[file.parent] = read_header(file.parent)
        except RunFolderError as error:
            unreadable[file.parent] = error
    newest = sorted(found, key=lambda path: found[path].created, reverse=True)
    return {path: found[path] for path in newest} | unreadable


def _line(line: Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _read_lines(
    path: Path, read: Callable[[bytes, int], T], left_out: list[str] | None = None
) -> Iterator[T]:
    """Values of `read` for each line and its number. `left_out`, if given, collects bad lines."""
    told = os_errors(f"{path} cannot be read", "Make it readable.", RunFolderError)
    with told, suppress(FileNotFoundError), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # cut short by a kill; the sample counts as not done
            try:
                made = read(line, number)
            except (ValueError, RecursionError) as error:
                text = f"{path}, line {number}: {_reason(error, line)}"
                if left_out is None:
                    hint = (
                        "Restore the file, or delete the line and resume the run. "
                        "`specbench report --lenient` leaves such lines out."
                    )
                    raise RunFolderError(text, hint) from error
                left_out.append(text)
                continue
            yield made


def _reason(error: Exception, content: bytes) -> str:
    """The message with the path of the wrong value first, then the value."""
    if isinstance(error, ImpossibleRecord):
        return str(error)
    text, _, place = str(error).partition(" - at ")
    text = (text[:1].lower() + text[1:]).replace("`", "")
    if not place:
        return f"$: {text}"
    place = place.strip("`")
    try:
        value = json.loads(content)
        for name, index in re.findall(r"\.(\w+)|\[(.+?)\]", place):
            value = value[name or int(index)]
    except (ValueError, RecursionError):  # the place may be "[...]", the line not JSON
        return f"{place}: {text}"
    shown = json.dumps(value)  # in ASCII
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]} ..."
    return f"{place}: {text} ({shown})"


def run_folder(path: Path) -> Path:
    """The folder of a run that is given as itself, or as one of its files."""
    return path.parent if path.name in (HEADER, SAMPLES) and not path.is_dir() else path


def run_folders(path: Path) -> list[Path]:
    """The folders of the runs of a suite, in order; or the one of a run or of a pool."""
    of_suite = sorted(file.parent for file in path.glob(f"*/{HEADER}"))
    is_run = not of_suite or (path / HEADER).exists()
    return [run_folder(path)] if is_run or pooled_folders(path) else of_suite


def is_being_written(path: Path) -> bool:
    """True if a process holds the lock of the run in a folder."""
    with suppress(FileNotFoundError, PermissionError), (path / SAMPLES).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def state(path: Path, header: RunHeader) -> str:
    """The run's status; `stopped` if it says `running` and its process is gone."""
    is_gone = header.status == "running" and not is_being_written(path)
    return "stopped" if is_gone else header.status


def num_records(path: Path) -> int:
    """Whole records in the folder of a run."""
    with suppress(FileNotFoundError), (path / SAMPLES).open("rb") as file:
        return sum(line.endswith(b"\n") for line in file)
    return 0
