"""Write a run in the formats of other tools, with a file per method, temperature, load and pass."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specbench.errors import RunFolderError, UserError, os_errors, unknown_name
from specbench.log.exchange.format import Format, WrittenAnswers, all_formats
from specbench.log.files import write_whole
from specbench.log.run import Load, Run, load_of
from specbench.types import Record


class _FileKey(NamedTuple):
    """The values that the answers in one file have in common."""

    method: str
    temperature: float
    load: Load
    repeat: int


def written_formats() -> dict[str, Format]:
    """The formats that can be written, by name."""
    return {name: file_format for name, file_format in all_formats().items() if file_format.write}


def write_files(run: Run, form: str, out: Path) -> list[Path]:
    """Write the answers of a run into the folder `out`, in the format with the name `form`.

    Returns the paths of the files. A file has the answers of a method at a temperature and load in
    one pass, sorted by request.

    Raises:
        UserError: there is no such format, an answer lacks what the format needs, or a file exists
            already.
        RunFolderError: the folder cannot be written.
    """
    formats = written_formats()
    if form not in formats:
        raise unknown_name("format", form, formats)
    write = formats[form].write  # makes the text of a file; UserError if an answer lacks steps
    assert write is not None
    lacks_times = any(
        record.is_ok and (record.prefill_s is None or record.decode_s is None)
        for record in run.records
    )
    if lacks_times and formats[form].needs_times:
        raise UserError(
            f"{run.header.id} lacks times to the first token, which {form} needs.",
            "Choose spec-bench or eagle.",
        )
    records_of_files: dict[_FileKey, list[Record]] = defaultdict(list)
    for record in run.records:
        key = record.key
        file_key = _FileKey(key.method, key.temperature, load_of(key), key.repeat)
        records_of_files[file_key].append(record)
    contents: dict[Path, str] = {}  # path -> content of the file
    for file_key, records in records_of_files.items():
        records.sort(key=lambda record: record.key.request)
        path = out / f"{_name(file_key, [*records_of_files])}.{formats[form].ending}"
        if path.exists() or path in contents:
            raise UserError(
                f"{path} exists already, or two methods have this file name.",
                "Give another --out, or import the methods with other labels.",
            )
        contents[path] = write(WrittenAnswers(run.header, records, file_key.load))
    with os_errors(f"{out} cannot be written", "Give another --out.", RunFolderError):
        out.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            write_whole(path, content.encode())
    return [*contents]


def _name(file_key: _FileKey, all_keys: Sequence[_FileKey]) -> str:
    """The name of a file without its extension, made of the method, temperature, load and pass.

    A part after the method is left out if it is the same in all files (`all_keys`).
    """
    # Characters that a file's name may not have, such as ":", become "-".
    parts = [re.sub(r"[^\w.=-]+", "-", file_key.method)]
    if len({key.temperature for key in all_keys}) > 1:
        parts.append(f"temperature-{file_key.temperature:g}")
    if len({key.load for key in all_keys}) > 1:
        parts.append(file_key.load.text.replace(" ", "-").replace("/", "-per-"))
    if len({key.repeat for key in all_keys}) > 1:
        parts.append(f"pass-{file_key.repeat + 1}")
    return "-".join(parts)
