"""JSON Schemas of the run files, and their fields as rows of text."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from specbench import types
from specbench.errors import unknown_name
from specbench.log import audit, backend, header, machine, record, spec

KINDS: Mapping[str, type] = {
    "header": header.RunHeader,
    "record": record.RecordLine,
    "trace": record.TraceLine,
    "audit": audit.StoredAudit,
}
"""Kinds of files: `run.json`, a line of `samples.jsonl` and of `trace.jsonl`, `audit.json`."""


class Field(NamedTuple):
    """A field of a file. In `path`, "[]" stands for items and ".*" for the values of a mapping."""

    path: str
    kind: str
    text: str


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file.

    Raises:
        UserError: there is no such kind.
    """
    if kind not in KINDS:
        raise unknown_name("kind of file", kind, KINDS)
    schema = msgspec.json.schema(KINDS[kind])
    for name, about in schema["$defs"].items():
        for field, text in _descriptions()[name].items():
            about["properties"][field]["description"] = text
        if "enum" in (tag := about["properties"].get("schema", {})):
            tag["description"] = "version of the run files"  # a tag cannot have a Meta
    return schema


@cache
def _descriptions() -> dict[str, dict[str, str]]:
    """The docstrings of fields, by class. Python drops them, so they are read from the source."""
    found: dict[str, dict[str, str]] = {}
    for module in (types, machine, backend, spec, header, audit, record):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                kind = getattr(module, node.name)
                bases = (found.get(base.__name__, {}).items() for base in kind.__bases__)
                encoded = structs.fields(kind) if issubclass(kind, msgspec.Struct) else ()
                names = {one.name: one.encode_name for one in encoded}
                own = ((names.get(field, field), text) for field, text in _docstrings(node))
                found[node.name] = dict(chain(*bases, own))
    return found


def _docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for declared, text in pairwise(node.body):
        if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr):
            yield ast.unparse(declared.target), " ".join(ast.literal_eval(text.value).split())


def fields(kind: str) -> list[Field]:
    """Every field of a kind of file. A type that occurs more than once is expanded once."""
    whole = json_schema(kind)
    return list(_fields(whole, "", dict(whole["$defs"])))


def _fields(schema: Mapping[str, Any], path: str, types: dict[str, Any]) -> Iterator[Field]:
    """The fields below a path. `types` are those not expanded yet."""
    for option in schema.get("anyOf", [schema]):
        own = types.pop(option["$ref"].rpartition("/")[2], {}) if "$ref" in option else option
        for name, about in own.get("properties", {}).items():
            below = f"{path}.{name}" if path else name
            yield Field(below, _kind(about), about.get("description", ""))
            yield from _fields(about, below, types)
        for key, suffix in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(own.get(key), dict):
                yield from _fields(own[key], path + suffix, types)


def _kind(about: Mapping[str, Any]) -> str:
    """The type of a field in words."""
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(_kind(option) for option in about["anyOf"]))
    if "enum" in about:
        return " or ".join("null" if value is None else f"`{value}`" for value in about["enum"])
    if about.get("type") == "array":
        return f"array of {_kind(about['items'])}" if about.get("items") else "array"
    return str(about.get("type", "object" if "$ref" in about else "any"))
