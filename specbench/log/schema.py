"""JSON Schemas of the run files."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import Any

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


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file.

    Raises:
        UserError: there is no such kind.
    """
    if kind not in KINDS:
        raise unknown_name("kind of file", kind, KINDS)
    schema, descriptions = msgspec.json.schema(KINDS[kind]), _descriptions()
    for name, about in schema["$defs"].items():
        for field, text in descriptions[name].items():
            about["properties"][field]["description"] = text
        if "enum" in (tag := about["properties"].get("schema", {})):
            tag["description"] = "version of the run files"  # a tag cannot have a Meta
    return schema


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
