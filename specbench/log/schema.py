"""JSON Schemas of the run files, and their fields as rows of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from specbench.errors import unknown_name
from specbench.log.audit import StoredAudit
from specbench.log.header import RunHeader
from specbench.log.record import RecordLine, TraceLine

KINDS: Mapping[str, type] = {
    "header": RunHeader, "record": RecordLine, "trace": TraceLine, "audit": StoredAudit,
}  # fmt: skip
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
    for about in schema["$defs"].values():
        if "enum" in (tag := about["properties"].get("schema", {})):
            tag["description"] = "version of the run files"  # a tag has no Meta of its own
    return schema


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
