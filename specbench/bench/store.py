"""The run folder: `run.json`, written whole, and `samples.jsonl`, only ever appended to; and
`trace.jsonl`, a line for each traced sample.

Knows bytes and JSON. Knows nothing of models or methods. What was once written survives a kill, a
full disk and a second process; a line cut short by any of them is dropped before the next one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from specbench.errors import RunFolderError
from specbench.types import SCHEMA, Phases, Record, SampleKey

HEADER, SAMPLES, TRACE, LOCK = "run.json", "samples.jsonl", "trace.jsonl", ".lock"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as read from its folder: the header `run.json` and every whole sample line."""

    path: Path
    header: Mapping[str, Any]
    records: tuple[Record, ...]


class RunFolder:
    """A run folder opened for writing, by one process at a time.

    Use it as a context manager; the lock goes with the process, however that ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._samples: IO[bytes] | None = None
        self._lock: Any = None

    def __enter__(self) -> RunFolder:
        from filelock import FileLock, Timeout

        with _as_folder_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.path / LOCK)
            try:
                self._lock.acquire(timeout=0)
            except Timeout as error:
                raise RunFolderError(
                    f"Another process is writing to {self.path}.",
                    "Wait for it to end, or give another --output.",
                ) from error
            self._samples = _open_for_append(self.path / SAMPLES)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._samples is not None:
            self._samples.close()
        self._lock.release()

    def write_header(self, header: Mapping[str, Any]) -> None:
        """Replace `run.json` as a whole."""
        text = json.dumps({"schema": SCHEMA, **header}, indent=2, ensure_ascii=False) + "\n"
        with _as_folder_error(self.path):
            scratch = self.path / f"{HEADER}.new"
            with scratch.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self.path / HEADER)

    def append(self, record: Record) -> None:
        """Add one line, and one of its trace if it has one; on failure a file ends as before."""
        assert self._samples is not None, "the folder is not open"
        if record.trace:
            with _open_for_append(self.path / TRACE) as file:
                self._add(file, {**asdict(record.key), "steps": [asdict(s) for s in record.trace]})
        self._add(self._samples, _to_json(record))

    def _add(self, file: IO[bytes], line: Mapping[str, Any]) -> None:
        end = os.fstat(file.fileno()).st_size
        with _as_folder_error(self.path):
            try:
                file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
                file.flush()
            except OSError:
                os.ftruncate(file.fileno(), end)
                raise

    def records(self) -> tuple[Record, ...]:
        """Every line written so far."""
        return tuple(_read_samples(self.path / SAMPLES))


def read_run(path: Path) -> StoredRun:
    """The run in a folder; a last line cut short by a kill is left out.

    Raises:
        RunFolderError: no run lies there, a line is broken, or it is of a newer schema.
    """
    return StoredRun(path, read_header(path), tuple(_read_samples(path / SAMPLES)))


def read_header(path: Path) -> dict[str, Any]:
    """The header of the run in a folder."""
    try:
        header = json.loads((path / HEADER).read_text("utf-8"))
    except FileNotFoundError as error:
        raise RunFolderError(
            f"No run lies in {path}: it has no {HEADER}.",
            "See `specbench list runs` for the runs there are.",
        ) from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path / HEADER} cannot be read: {error}", "Restore it.") from error
    if not isinstance(header, dict) or not isinstance(header.get("schema"), int):
        raise RunFolderError(f"{path / HEADER} is no run header.", "Restore it.")
    if header["schema"] > SCHEMA:
        raise RunFolderError(
            f"{path} was written by a newer specbench (schema {header['schema']}, this version "
            f"reads up to {SCHEMA}).",
            "Upgrade: pip install -U specbench.",
        )
    return header


def list_runs(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The readable run folders below `root` with their headers, newest first."""
    found = []
    for header_file in root.glob(f"*/{HEADER}"):
        try:
            found.append((header_file.parent, read_header(header_file.parent)))
        except RunFolderError:
            continue
    return sorted(found, key=lambda run: str(run[1].get("created", "")), reverse=True)


def _read_samples(path: Path) -> Iterator[Record]:
    if not path.exists():
        return
    share = _Shared()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # cut short by a kill; the sample counts as not done
            try:
                yield _from_json(json.loads(line), share)
            except (ValueError, KeyError, TypeError) as error:
                raise RunFolderError(
                    f"{path}, line {number} is no sample: {type(error).__name__}: {error}",
                    "Restore the file, or delete the line and resume the run.",
                ) from error


def _open_for_append(path: Path) -> IO[bytes]:
    """The file, behind its last whole line."""
    file = path.open("ab")
    size = path.stat().st_size
    with path.open("rb") as existing:
        keep = size
        while keep:
            start = max(0, keep - 65536)
            existing.seek(start)
            newline = existing.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
    if keep < size:
        file.truncate(keep)
    return file


@contextmanager
def _as_folder_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}.",
            "Free space or choose another --output, then go on with --resume.",
        ) from error


def _to_json(record: Record) -> dict[str, Any]:
    key = record.key
    measured = {
        "phases": record.phases and asdict(record.phases),
        "peak_memory_bytes": record.peak_memory_bytes,
        "energy_j": record.energy_j,
    }
    return {
        "schema": SCHEMA,
        "method": key.method,
        "temperature": key.temperature,
        "task": key.task,
        "sample_id": key.sample_id,
        "turn": key.turn,
        "repeat": key.repeat,
        "status": record.status,
        "prompt_tokens": record.prompt_tokens,
        "token_ids": record.token_ids,
        "num_tokens": record.num_tokens,
        "text": record.text,
        "stop_reason": record.stop_reason,
        "prefill_s": record.prefill_s,
        "decode_s": record.decode_s,
        "accept_lengths": record.accept_lengths,
        "num_nodes": record.num_nodes,
        "seed": record.seed,
        "error": record.error,
        **{name: value for name, value in measured.items() if value is not None},
    }


class _Shared:
    """One object for equal values: most methods give the same tokens, and large runs must fit."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._values: dict[Any, Any] = {}

    def numbers(self, listed: list[int]) -> tuple[int, ...]:
        """The tuple of these numbers."""
        numbers = tuple(listed)
        return self._numbers.setdefault(numbers, numbers)

    def value(self, value: Any) -> Any:
        """The value, as it came first."""
        return self._values.setdefault(value, value)


def _from_json(line: dict[str, Any], share: _Shared) -> Record:
    key = SampleKey(
        share.value(line["method"]),
        float(line["temperature"]),
        share.value(line["task"]),
        share.value(line["sample_id"]),
        line["turn"],
        line["repeat"],
    )
    return Record(
        key,
        line["status"],
        line["prompt_tokens"],
        share.numbers(line["token_ids"]),
        share.value(line["text"]),
        line["stop_reason"],
        line["prefill_s"],
        line["decode_s"],
        share.numbers(line["accept_lengths"]),
        share.numbers(line["num_nodes"]),
        line["seed"],
        line["error"],
        Phases(**line["phases"]) if line.get("phases") else None,
        line.get("peak_memory_bytes"),
        line.get("energy_j"),
    )
