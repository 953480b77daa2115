"""Published tables of other tools' numbers: a TOML file and a CSV file of the same name.

Their cells are the rows of files without answers, or the numbers that a publisher's rules give for
imported answers. They have no samples and so no intervals.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
from specbench.log.imported import ImportedHeader
from specbench.log.run import Run

_KEY = ("table", "model", "method", "task")
_COLUMNS_OF_FIGURES = {
    "speedup": "speedup",
    "MAT": "mean_accepted_tokens",
    "tokens/s": "tokens_per_s",
    "mean tokens/s per question": "tokens_per_s",
}
"""Names of publishers' numbers, and their columns."""
_REPOSITORY = re.compile(r"https://github\.com/([^/]+/[^/]+)")
Cells = Sequence[Mapping[str, Any]]
"""Rows of a table: columns with their values."""


class TableOrigin(NamedTuple):
    """The origin of a table's cells."""

    name: str
    """Tool, or owner and name of the repository that has the files."""
    title: str
    settings: str
    """The publisher's arithmetic."""
    files: Mapping[str, str]
    """Hashes of the files, by name."""
    columns: Mapping[str, str]
    """Path in the files, or rule, of each column by name."""
    hardware: str
    url: str


class ImportedTable(NamedTuple):
    """Cells of one or several files."""

    mapping: FileMapping
    sources: Sequence[SourceFile]
    cells: Sequence[dict[str, Any]]
    """Columns with their values."""


def table_mapping(source: SourceFile, mapping: FileMapping | None) -> FileMapping | None:
    """The mapping of a file of totals, given or shipped; None for a file of answers."""
    if mapping is None and not has_format(source):
        mapping = mapping_of(source, "cells")
    return mapping if mapping and mapping.gives == "cells" else None


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


def write_table(table: ImportedTable, path: Path, url: str = "") -> list[Path]:
    """Write both files of a table: NAME.toml says where it is from, NAME.csv has the cells.

    `url` is the address of the files.

    Raises:
        RunFolderError: the files cannot be written.
        UserError: the files exist already.
    """
    mapping = table.mapping
    hardware = {hardware_of(mapping, source) for source in table.sources} - {""}
    origin = TableOrigin(
        name=_publisher(url, mapping.tool),
        title=mapping.title,
        settings=mapping.arithmetic,
        files={source.path.name: source.sha256 for source in table.sources},
        columns={name: column.path for name, column in mapping.columns.items()},
        hardware=", ".join(sorted(hardware)),
        url=url,
    )
    return _write(origin, table.cells, path)


def write_figures(runs: Sequence[Run], path: Path) -> list[Path]:
    """Write the publisher's numbers of imported runs; the rule of each is in `settings`.

    Raises:
        RunFolderError: the files cannot be written.
        UserError: a run was not imported or has no such numbers, or the files exist already.
    """
    cells: list[Mapping[str, Any]] = []
    headers: list[ImportedHeader] = []
    for run in runs:
        rows = list(_figure_cells(run))
        if run.header.imported is None or not rows:
            raise UserError(
                f"{run.header.id} has no numbers of a publisher.",
                "Name imported runs with answers.",
            )
        cells += rows
        headers.append(run.header.imported)
    files = [file for imported in headers for file in imported.files]
    (first, *_), (tool, *_) = headers, files
    url = first.given.get("url", "")
    origin = TableOrigin(
        name=_publisher(url, tool.tool),
        title=f"publisher's numbers from {tool.format}",
        settings=first.arithmetic,
        files={file.name: file.sha256 for file in files},
        columns=dict.fromkeys(_COLUMNS_OF_FIGURES.values(), "by the rule in settings"),
        hardware="",
        url=url,
    )
    return _write(origin, cells, path)


def _figure_cells(run: Run) -> Iterator[Mapping[str, Any]]:
    """A cell for each number of the publisher that a table can hold."""
    header = run.header
    names = {method.title: name for name, method in header.methods.items()}
    (task, *_), (temperature, *_) = header.spec.values.tasks, header.spec.values.temperatures
    for figure in header.imported.figures if header.imported else ():
        if figure.name in _COLUMNS_OF_FIGURES:
            yield {
                "table": "table",
                "model": header.model.name,
                "method": names.get(figure.method, figure.method),
                "task": task,
                "settings": figure.rule_text,
                _COLUMNS_OF_FIGURES[figure.name]: figure.value,
                "temperature": temperature,
            }


def _publisher(url: str, tool: str) -> str:
    """The repository that has the files; the tool that wrote them if the repository is unknown."""
    repository = _REPOSITORY.match(url)
    return repository[1] if repository else tool


def _write(origin: TableOrigin, cells: Cells, path: Path) -> list[Path]:
    """Write both files of a table."""
    name = path.name.removesuffix(".toml")
    toml_path, csv_path = path.with_name(f"{name}.toml"), path.with_name(f"{name}.csv")
    if toml_path.exists() or csv_path.exists():
        raise UserError(f"{toml_path} or its CSV exists already.", "Give another --out.")
    filled = {column for cell in cells for column in cell}
    columns = [*TEXTS[:1], *(name for name in (*TEXTS[1:], *NUMBERS) if name in filled)]
    rows = io.StringIO()
    writer = csv.DictWriter(rows, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    with os_errors(f"{path} cannot be written", "Give another --out.", RunFolderError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(toml_path, _about(origin).encode())
        write_whole(csv_path, rows.getvalue().encode())
    return [toml_path, csv_path]


def _about(origin: TableOrigin) -> str:
    """Text of a TOML file: where a table's numbers come from, and how its columns were made."""
    values = {
        "name": origin.name,
        "title": f"{origin.title}, imported",
        "url": origin.url,
        "settings": origin.settings,
    }
    lines = [f"{name} = {json.dumps(text)}" for name, text in values.items() if text]
    lines.append("[files]")
    lines += [f"{json.dumps(file)} = {json.dumps(sha256)}" for file, sha256 in origin.files.items()]
    lines.append("[columns]")
    lines += [f"{column} = {json.dumps(rule)}" for column, rule in origin.columns.items()]
    lines.append("[table.table]")  # its only table, with the key "table"
    lines.append(f"title = {json.dumps(origin.title)}")
    lines.append(f"hardware = {json.dumps(origin.hardware or 'not stated')}")
    return "\n".join(lines) + "\n"
