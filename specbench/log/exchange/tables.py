"""Make published tables of other tools' numbers, as a TOML file and a CSV file of the same name.

The cells are the rows of files without answers, or numbers computed from imported answers by a
publisher's rules. Without samples, they have no intervals.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
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
"""Columns that name a cell."""
_COLUMNS_OF_FIGURES = {
    "speedup": "speedup",
    "MAT": "mean_accepted_tokens",
    "tokens/s": "tokens_per_s",
    "mean tokens/s per question": "tokens_per_s",
}
"""Name of a publisher's number -> its column in a table."""
_REPOSITORY = re.compile(r"https://github\.com/([^/]+/[^/]+)")
Cells = Sequence[Mapping[str, Any]]
"""Rows of a table, each as column -> value."""


class TableOrigin(NamedTuple):
    """The source of a table's cells."""

    name: str
    """The tool, or the owner and name of the repository that has the files."""
    title: str
    settings: str
    """The publisher's arithmetic."""
    files: Mapping[str, str]
    """Hashes of the files, by name."""
    columns: Mapping[str, str]
    """Name of a column -> its path in the files, or the rule by which it is computed. Columns that
    no cell has are not written.
    """
    hardware: str
    url: str


class ImportedTable(NamedTuple):
    """Cells of one or several files."""

    mapping: FileMapping
    sources: Sequence[SourceFile]
    cells: Sequence[dict[str, Any]]
    """Columns with their values."""


def table_mapping(source: SourceFile, mapping: FileMapping | None) -> FileMapping | None:
    """The given or shipped mapping for a file of totals, or None for a file of answers."""
    if mapping is None and not has_format(source):
        mapping = mapping_of(source, "cells")
    return mapping if mapping and mapping.gives == "cells" else None


def read_table(sources: Sequence[SourceFile], mapping: FileMapping) -> ImportedTable:
    """Read the table in these files. Each row of a file is a cell.

    `mapping` says where the rows and columns are in such files, and its `title` names the format.
    Names of methods that differ only in capitals or punctuation are noted.

    Raises:
        UserError: a file has another form or no rows, or a row lacks its model, method or task.
    """
    cells: list[dict[str, Any]] = []  # a dict per cell: column -> text or number
    for source in sources:
        # `mapping.has` are keys that the first JSON value of such a file has.
        cells_of_file = read_cells(mapping, source) if source.entries[0].has(*mapping.has) else []
        if not cells_of_file:  # "" stands for the whole file
            raise source.error("", f"it is not a file of {mapping.title}, or it has no rows")
        for cell in cells_of_file:
            # The name of the table is optional.
            lacking = [name for name in _KEY if name not in cell and name != "table"]
            if lacking:
                raise source.error("", f"a row has no {' and no '.join(lacking)}")
            cells.append({"table": "table", "temperature": 0.0, **cell})  # with these defaults
    for both_names in _alike({cell["method"] for cell in cells}):
        sources[-1].note("", f"{both_names} may be two spellings of one name")
    return ImportedTable(mapping, sources, cells)


def _alike(names: set[str]) -> Iterator[str]:
    """Yield pairs of names with the same letters and digits as text, such as "'A-b' and 'ab'"."""
    by_letters: dict[str, str] = {}  # letters and digits -> the last name that has them
    for name in sorted(names):
        letters = "".join(filter(str.isalnum, name.casefold()))
        if letters in by_letters:
            yield f"{by_letters[letters]!r} and {name!r}"
        by_letters[letters] = name


def write_table(table: ImportedTable, path: Path, url: str = "") -> list[Path]:
    """Write the two files of a table. NAME.toml says where it is from, and NAME.csv has the cells.

    `url` is the address from which the files were taken.

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
        files=_hashes((source.path.name, source.sha256) for source in table.sources),
        columns={name: column.path for name, column in mapping.columns.items()},
        hardware=", ".join(sorted(hardware)),
        url=url,
    )
    return _write(origin, table.cells, path)


def write_figures(runs: Sequence[Run], path: Path) -> list[Path]:
    """Write the publisher's numbers of imported runs as a published table: NAME.toml and NAME.csv.

    These numbers, such as a speedup, are computed from a run's answers by the rules of the tool
    that wrote its files. The address and the rules in words (`arithmetic`) are the first run's. The
    tool and the title, which names the format, are those of the first run's first file. Returns the
    paths of both files.

    `runs` has at least one run.

    Raises:
        RunFolderError: the files cannot be written.
        UserError: a run was not imported or has no such numbers, or the files exist already.
    """
    assert runs, "no runs"
    cells: list[Mapping[str, Any]] = []  # a mapping per cell: column -> text or number
    headers: list[ImportedHeader] = []  # one per run
    for run in runs:
        cells_of_run = list(_figure_cells(run))
        if run.header.imported is None or not cells_of_run:
            raise UserError(
                f"{run.header.id} has no numbers of a publisher.",
                "Name imported runs with answers.",
            )
        cells += cells_of_run
        headers.append(run.header.imported)
    files = [file for imported in headers for file in imported.files]
    (first_header, *_), (first_file, *_) = headers, files
    # `given` has what the user told `convert`, by option; "url" is the address of the files.
    url = first_header.given.get("url", "")
    origin = TableOrigin(
        name=_publisher(url, first_file.tool),
        title=f"publisher's numbers from {first_file.format}",
        settings=first_header.arithmetic,
        files=_hashes((file.name, file.sha256) for file in files),
        # The CSV's column `settings` has the rule of each number.
        columns=dict.fromkeys(_COLUMNS_OF_FIGURES.values(), "by the rule in settings"),
        hardware="",
        url=url,
    )
    return _write(origin, cells, path)


def _figure_cells(run: Run) -> Iterator[Mapping[str, Any]]:
    """Yield a cell (column -> text or number) for each publisher's number that has a column."""
    header = run.header
    # Method's name for readers -> its name in records.
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


def _hashes(names_and_hashes: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Name of a file -> its hash.

    Another file of the same name gets a number after its name, such as "results.json (2)". It is
    the first number that makes the name unique.
    """
    files = list(dict.fromkeys(names_and_hashes))  # without duplicates
    real_names = {name for name, _ in files}
    hashes: dict[str, str] = {}
    for name, sha256 in files:
        numbered_names = (f"{name} ({number})" for number in count(2))
        free_name = name
        while free_name in hashes or (free_name != name and free_name in real_names):
            free_name = next(numbered_names)
        hashes[free_name] = sha256
    return hashes


def _publisher(url: str, tool: str) -> str:
    """The repository that has the files, or the tool that wrote them if the repository is
    unknown.
    """
    repository = _REPOSITORY.match(url)
    return repository[1] if repository else tool


def _write(origin: TableOrigin, cells: Cells, path: Path) -> list[Path]:
    """Write NAME.toml, which says where a table is from, and NAME.csv with its cells.

    Returns the two paths. `path` is the path of NAME, with or without ".toml". A column that no
    cell has is left out, except the first of `TEXTS`, the table's name.

    Raises:
        RunFolderError: the files cannot be written.
        UserError: the path has no name, or one of the files exists already.
    """
    name = path.name.removesuffix(".toml")
    if name in ("", ".."):
        raise UserError(f"{path} is a folder.", "Give --out the path of the table.")
    toml_path, csv_path = path.with_name(f"{name}.toml"), path.with_name(f"{name}.csv")
    if toml_path.exists() or csv_path.exists():
        raise UserError(f"{toml_path} or its CSV exists already.", "Give another --out.")
    filled = {column for cell in cells for column in cell}
    filled_origin = origin._replace(
        columns={column: rule for column, rule in origin.columns.items() if column in filled}
    )
    table_column, *other_texts = TEXTS
    columns = [table_column, *(column for column in (*other_texts, *NUMBERS) if column in filled)]
    csv_text = io.StringIO()
    writer = csv.DictWriter(csv_text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    with os_errors(f"{path} cannot be written", "Give another --out.", RunFolderError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(toml_path, _about(filled_origin).encode(errors="replace"))
        write_whole(csv_path, csv_text.getvalue().encode())
    return [toml_path, csv_path]


def _about(origin: TableOrigin) -> str:
    """The text of a table's TOML file, which has the source of the numbers, with the hash of each
    file and the path or rule of each column.

    Texts are written as JSON, which is also TOML if characters beyond ASCII are not escaped. Empty
    values are left out.
    """
    quoted = partial(json.dumps, ensure_ascii=False)
    facts = {
        "name": origin.name,
        "title": f"{origin.title}, imported",
        "url": origin.url,
        "settings": origin.settings,
    }
    lines = [f"{key} = {quoted(fact)}" for key, fact in facts.items() if fact]
    lines.append("[files]")
    lines += [f"{quoted(file)} = {quoted(sha256)}" for file, sha256 in origin.files.items()]
    lines.append("[columns]")
    lines += [f"{column} = {quoted(rule)}" for column, rule in origin.columns.items()]
    lines += [
        "[table.table]",  # the only table, whose key is "table"
        f"title = {quoted(origin.title)}",
        f"hardware = {quoted(origin.hardware or 'not stated')}",
    ]
    return "\n".join(lines) + "\n"
