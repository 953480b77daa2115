"""Aggregates of other tools as a published table: a TOML file and a CSV file of the same name.

Cells have no samples and so no intervals.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import RunFolderError, UserError, os_errors
from specbench.log.exchange.format import has_format
from specbench.log.exchange.mapping import (
    NUMBERS,
    TEXTS,
    FileMapping,
    hardware_of,
    mapping_of,
    read_cells,
)
from specbench.log.exchange.source import SourceFile
from specbench.log.files import write_whole

_KEY = ("table", "model", "method", "task")


class ImportedTable(NamedTuple):
    """Cells of one or several files."""

    mapping: FileMapping
    sources: Sequence[SourceFile]
    cells: Sequence[dict[str, Any]]
    """Columns with their values."""


def table_mapping(source: SourceFile, given: FileMapping | None) -> FileMapping | None:
    """The mapping of a file of totals, given or shipped; None for a file of answers."""
    if given is None and not has_format(source):
        given = mapping_of(source, "cells")
    return given if given and given.gives == "cells" else None


def read_table(sources: Sequence[SourceFile], mapping: FileMapping) -> ImportedTable:
    """The cells of these files, by one mapping.

    Raises:
        UserError: a file has another form, or no cell.
    """
    cells: list[dict[str, Any]] = []
    for source in sources:
        rows = read_cells(mapping, source) if source.entries[0].has(*mapping.has) else []
        if not rows:
            raise source.error("", f"it is not a file of {mapping.title}, or it has no rows")
        for cell in rows:  # column -> its text or number
            lacking = [name for name in _KEY[1:] if name not in cell]
            if lacking:
                raise source.error("", f"a row has no {' and no '.join(lacking)}")
            cells.append({"table": "table", "temperature": 0.0, **cell})
        for names in _alike({cell["method"] for cell in cells}):
            source.note("", f"{names} may be two spellings of one name")
    return ImportedTable(mapping, sources, cells)


def _alike(names: set[str]) -> Iterator[str]:
    """Pairs of names with the same letters and digits."""
    by_letters: dict[str, str] = {}
    for name in sorted(names):
        letters = "".join(filter(str.isalnum, name.casefold()))
        if letters in by_letters:
            yield f"{by_letters[letters]!r} and {name!r}"
        by_letters[letters] = name


def write_table(table: ImportedTable, path: Path) -> list[Path]:
    """Write both files of a table: NAME.toml says where it is from, NAME.csv has the cells.

    Raises:
        RunFolderError: they cannot be written.
        UserError: they exist already.
    """
    name = path.name.removesuffix(".toml")
    toml_path, csv_path = path.with_name(f"{name}.toml"), path.with_name(f"{name}.csv")
    if toml_path.exists() or csv_path.exists():
        raise UserError(f"{toml_path} or its CSV exists already.", "Give another --out.")
    # the first text, then the columns that any cell has
    columns = [*TEXTS[:1], *(name for name in (*TEXTS[1:], *NUMBERS) if _has(table, name))]
    rows = io.StringIO()
    writer = csv.DictWriter(rows, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.cells)
    with os_errors(f"{path} cannot be written", "Give another --out.", RunFolderError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(toml_path, _about(table).encode())
        write_whole(csv_path, rows.getvalue().encode())
    return [toml_path, csv_path]


def _has(table: ImportedTable, column: str) -> bool:
    return any(column in cell for cell in table.cells)


def _about(table: ImportedTable) -> str:
    """The TOML file: the origin of the table, from the files and the mapping."""
    mapping = table.mapping
    hardware = {hardware_of(mapping, source) for source in table.sources} - {""}
    values = {
        "name": mapping.tool,
        "title": f"{mapping.title}, imported",
        "settings": mapping.arithmetic,
    }
    lines = [f"{name} = {json.dumps(text)}" for name, text in values.items()]
    lines.append("[files]")
    lines += [
        f"{json.dumps(source.path.name)} = {json.dumps(source.sha256)}" for source in table.sources
    ]
    lines.append("[columns]")
    lines += [f"{name} = {json.dumps(column.path)}" for name, column in mapping.columns.items()]
    lines += [
        "[table.table]",
        f"title = {json.dumps(mapping.title)}",
        f"hardware = {json.dumps(', '.join(sorted(hardware)) or 'not stated')}",
    ]
    return "\n".join(lines) + "\n"
