"""Read files with a mapping, which is a TOML file with the places of rows and columns.

    title = "results of a tool"
    has = ["model", "results"]       keys of such a file
    gives = "cells"                  or "answers"
    rows = "results[].metrics[]"     elements of lists; "*task" is any key, kept under that name
    [columns]
    model = { path = "model" }       found in the row, else in the objects around it
    time_per_token_s = { path = "ms_per_token", scale = 0.001 }

A mapping of cells makes a published table, and a mapping of answers makes a run.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from specbench.errors import UserError
from specbench.log.exchange.arithmetic import draft_figures
from specbench.log.exchange.format import (
    FileContent,
    Format,
    answer_key,
    counts_from_drafts,
    failed,
)
from specbench.log.exchange.source import Fields, SourceFile, finite
from specbench.types import Record

Scopes = tuple[Fields, ...]
"""A row with the objects around it, the outermost first."""
NUMBERS = (
    *("speedup", "mean_accepted_tokens", "tokens_per_s", "load", "num_draft_tokens", "repeat"),
    *("temperature", "acceptance_rate", "time_to_first_token_s", "time_per_token_s"),
)
"""Columns of a published table that are numbers."""
_MEASURED = ("speedup", "mean_accepted_tokens", "tokens_per_s", "tokens")
"""A row must have at least one of these columns."""
_AMOUNTS = (*NUMBERS, "tokens", "accepted")
TEXTS = ("table", "model", "method", "task", "settings")
"""Columns of a published table that are texts."""


class Column(Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a column's values, and their conversion."""

    path: str = ""
    """Path of the field. The texts at several paths, with "+" between them, are joined."""
    scale: float = 1.0
    """Factor by which a number is multiplied."""
    words: dict[str, str] = {}
    """Texts of the file -> the texts that replace them."""
    default: str | float | None = None
    """The value if the field is absent."""


class FileMapping(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a mapping file."""

    title: str
    """Name of the format that readers see."""
    tool: str
    """Tool that writes such files."""
    has: tuple[str, ...]
    """Keys that the first value of such a file has."""
    gives: Literal["cells", "answers"]
    """The content of a row: cells of a table, or an answer."""
    rows: str
    """Path of the rows. Empty if each value of the file is a row."""
    columns: dict[str, Column]
    """Columns of published tables or of answers, by name."""
    arithmetic: str = "not known"
    """The publisher's arithmetic for printed numbers."""
    counting: str = "as the file has them"
    """The counting rule of the answers."""
    lacks: tuple[str, ...] = ()
    """Facts that the files lack."""
    hardware: Column = Column()
    """The place of the hardware's name in the file."""


@cache
def shipped_mappings() -> Mapping[str, FileMapping]:
    """The mappings that come with specbench, by name."""
    folder = Path(__file__).with_name("mappings")
    return {path.stem: read_mapping(path) for path in sorted(folder.glob("*.toml"))}


def read_mapping(path: Path) -> FileMapping:
    """Read a mapping file.

    Raises:
        UserError: the file is not a mapping.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=FileMapping)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not a mapping: {error}", "docs/convert.md describes mapping files."
        ) from error


def matches(mapping: FileMapping, source: SourceFile) -> bool:
    """True if a mapping fits a file. The first JSON value must have the mapping's keys, and the
    first row must have a number in at least one column of `_MEASURED` and no text in place of a
    number.
    """
    first_value = source.entries[0]
    row = next(_walk((first_value,), _segments(mapping.rows)), None)  # None without any row
    if row is None or not first_value.has(*mapping.has):
        return False
    columns = mapping.columns  # name -> the column's place in a row
    try:
        # Name of a column -> its number in the row; None if the row has none.
        amounts = {name: _number(row, columns[name]) for name in columns if name in _AMOUNTS}
    except UserError:  # a text instead of a number
        return False
    return any(amounts[name] is not None for name in _MEASURED if name in amounts)


def mapping_of(source: SourceFile, gives: Literal["cells", "answers"]) -> FileMapping | None:
    """The shipped mapping that fits a file, or None if none does."""
    for mapping in shipped_mappings().values():
        if mapping.gives == gives and matches(mapping, source):
            return mapping
    return None


def mapped_format(mapping: FileMapping) -> Format:
    """The format of files that a mapping of answers describes."""
    return Format(
        title=mapping.title,
        tool=mapping.tool,
        arithmetic=mapping.arithmetic,
        matches=lambda first_value: first_value.has(*mapping.has),
        read=partial(read_answers, mapping),
        figures=draft_figures,
    )


def read_cells(mapping: FileMapping, source: SourceFile) -> list[dict[str, Any]]:
    """The rows of a published table, each as column -> text or number, without empty columns.

    Raises:
        UserError: a row has a text in place of a number.
    """
    columns = mapping.columns.items()  # names with their places in a row
    cells = []
    for scopes in _rows(mapping, source):
        cell: dict[str, Any] = {
            name: _text(scopes, column) for name, column in columns if name in TEXTS
        }
        cell |= {name: _number(scopes, column) for name, column in columns if name in NUMBERS}
        cells.append({name: content for name, content in cell.items() if content not in (None, "")})
    return cells


def hardware_of(mapping: FileMapping, source: SourceFile) -> str:
    """The hardware that the file names, or an empty text."""
    scopes = next(_rows(mapping, source), (source.entries[0],))
    return _text(scopes, mapping.hardware)


def read_answers(mapping: FileMapping, source: SourceFile) -> FileContent:
    """Read the rows as answers. Their columns are question, category, method, text, hash, tokens,
    accepted, prompt_tokens, prefill_s, decode_s, total_s and error. All are optional.
    """
    rows = enumerate(_rows(mapping, source))
    records = [_record(mapping.columns, scopes, number) for number, scopes in rows]
    return FileContent(records=records, counting=mapping.counting, lacks=mapping.lacks)


def _record(columns: Mapping[str, Column], scopes: Scopes, number: int) -> Record:
    """The record of the row with this number, from 0. A row with an error gives a failed record.

    An error of 0 or false means no error. `scopes` are the row and the objects around it. `columns`
    says where to find a text or number in them, by names of columns listed in `read_answers`.
    Raises UserError if a row has a negative number, or a text in place of a number.
    """

    def text(name: str) -> str:
        """The row's text in this column, or an empty text."""
        return _text(scopes, columns.get(name, Column()))

    def amount(name: str) -> float | None:
        """The row's number in this column, or None."""
        quantity = _number(scopes, columns.get(name, Column()))
        if quantity is not None and quantity < 0:
            raise scopes[-1].error(f"{name}: expected 0 or more, found {quantity:g}")
        return quantity

    accepted = amount("accepted")  # draft tokens of all steps of the answer
    num_accepted = None if accepted is None else round(accepted)
    counts = counts_from_drafts(
        round(amount("tokens") or 0),
        num_accepted,
        total_s=amount("total_s"),
        answer_hash=text("hash"),
    )
    error = text("error")
    record = Record(
        answer_key(
            text("question") or f"row {number}", method=text("method"), task=text("category")
        ),
        "ok",
        round(amount("prompt_tokens") or 0),
        text=text("text"),
        prefill_s=amount("prefill_s"),
        decode_s=amount("decode_s"),
        imported=counts,
    )
    return record if error.casefold() in ("", "0", "0.0", "false") else failed(record, error)


def _rows(mapping: FileMapping, source: SourceFile) -> Iterator[Scopes]:
    for file_value in source.entries:
        yield from _walk((file_value,), _segments(mapping.rows))


def _segments(path: str) -> Sequence[str]:
    return path.split(".") if path else ()


def _walk(scopes: Scopes, segments: Sequence[str]) -> Iterator[Scopes]:
    """Yield the rows to which a path leads, each with the objects around it.

    `scopes` are the objects that the path has passed so far, the outermost first. `segments` are
    the rest of the path, from the last of these objects. A segment "name" is a key, "name[]" all
    elements of a list, and "*name" all keys. A row is the object at the end of the path, and a
    value that is not an object becomes {"value": value}. Before each object on the path, there is
    an extra one: {name: the key} for "*name", so that a column can have the key, and {} otherwise.
    """
    *_, innermost = scopes
    if not segments:
        yield scopes
        return
    segment, *further_segments = segments
    content = innermost.content
    if not isinstance(content, Mapping):
        return
    # `children` are pairs of a key (the index in a list) and a child.
    if segment.endswith("[]"):
        name = segment.removesuffix("[]")
        elements = content.get(name)
        children = list(enumerate(elements)) if isinstance(elements, list) else []
        is_any = False  # True if every key fits the segment
    else:
        name = segment.removeprefix("*")
        is_any = segment.startswith("*")
        children = [(key, content[key]) for key in content if is_any or key == name]
    for key, child in children:
        child_place = f"{innermost.place}, {name}[{key}]".removeprefix(", ")  # for messages
        key_field = Fields(innermost.source, child_place, {name: str(key)} if is_any else {})
        child_object = child if isinstance(child, Mapping) else {"value": child}
        inner = Fields(innermost.source, child_place, child_object)
        yield from _walk((*scopes, key_field, inner), further_segments)


def _find(scopes: Scopes, path: str, kind: Any) -> Fields | None:
    """The field at a path in the innermost object that has it, as a value of the type `kind`. None
    if no object has it.
    """
    for fields in reversed(scopes):
        content = fields.get(path, kind, None) if path else None
        if content is not None:
            return Fields(fields.source, fields.place, content)
    return None


def _text(scopes: Scopes, column: Column) -> str:
    """The text of a column. Texts of several paths are joined by spaces. If the row has none of
    them, the text is the column's default, or empty. The `words` of a column may replace the
    texts of the file, and the default, by other texts.
    """
    fields = [
        _find(scopes, path.strip(), str | int | float | bool)  # None if the row lacks it
        for path in column.path.split("+")
    ]
    texts = [str(field.content) for field in fields if field is not None]
    texts = texts or [str(column.default or "")]
    return " ".join(filter(None, (column.words.get(text, text) for text in texts)))


def _number(scopes: Scopes, column: Column) -> float | None:
    """The number of a column in a row, or None if neither the row nor the default has one. Raises
    UserError if the row has a text that is not a finite number, before or after scaling.
    """
    field = _find(scopes, column.path, float | str)
    if field is None:
        return column.default if isinstance(column.default, float) else None
    try:
        return finite(str(float(field.content) * column.scale))
    except ValueError as error:
        raise field.error(
            f"{column.path}: expected a number, found {field.content!r} (scale {column.scale:g})"
        ) from error
