"""Make JSON Schemas of the run files."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import Any

import msgspec
from msgspec import structs

from specbench.errors import unknown_name
from specbench.log import (
    audit,
    backend,
    header,
    imported,
    machine,
    methods,
    model,
    record,
    spec,
    trace,
    usage,
)
from specbench.types import completion, shape

KINDS: Mapping[str, type] = {
    "header": header.RunHeader,
    "record": record.RecordLine,
    "imported": record.ImportedLine,
    "trace": trace.TraceLine,
    "audit": audit.StoredAudit,
}
"""Kinds of files, with their types: `run.json`, a line of `samples.jsonl` (of a measured or an
imported run), a line of `trace.jsonl`, and `audit.json`.
"""

_MODULES = (
    *(shape, completion),
    *(machine, usage, model, methods, backend, spec, imported, header),
    *(audit, record, trace),
)
"""The modules that declare parts of the files. A base class comes before its subclasses."""


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file (a key of `KINDS`), with a description of each field.

    Raises:
        UserError: there is no such kind.
    """
    if kind not in KINDS:
        raise unknown_name("kind of file", kind, KINDS)
    schema = msgspec.json.schema(KINDS[kind])
    descriptions = _descriptions()  # class name -> field name in files -> description
    # "$defs" maps the name of a class to the JSON Schema of its objects.
    for class_name, definition in schema["$defs"].items():
        for field, description in descriptions[class_name].items():
            definition["properties"][field]["description"] = description
        # In some classes, the version ("schema") is not a field, but the tag of a msgspec class. A
        # tag has an "enum", and no docstring.
        version_field = definition["properties"].get("schema", {})
        if "enum" in version_field:
            version_field["description"] = "version of the run files"
    return schema


def _descriptions() -> dict[str, dict[str, str]]:
    """Class name -> name of a field in files -> docstring of the field.

    A class also has the fields of its base classes. Python does not keep the docstrings of fields,
    so they are read from the source code of `_MODULES`.
    """
    docstrings_by_class: dict[str, dict[str, str]] = {}
    for module in _MODULES:
        for statement in ast.parse(inspect.getsource(module)).body:
            if isinstance(statement, ast.ClassDef):
                declared_class = getattr(module, statement.name)
                # A mapping for each base class, which comes before this class in `_MODULES`.
                inherited_docstrings = (
                    docstrings_by_class.get(base.__name__, {}) for base in declared_class.__bases__
                )
                docstrings_by_class[statement.name] = dict(
                    chain.from_iterable(map(dict.items, inherited_docstrings))
                )
                # The fields that the class itself declares are added.
                docstrings_by_class[statement.name] |= _own_descriptions(statement, declared_class)
    return docstrings_by_class


def _own_descriptions(node: ast.ClassDef, declared_class: type) -> dict[str, str]:
    """The docstrings of the fields that a class itself declares, by the fields' names in files."""
    is_struct = issubclass(declared_class, msgspec.Struct)
    fields = structs.fields(declared_class) if is_struct else ()
    names_in_files = {field.name: field.encode_name for field in fields}
    return {names_in_files.get(name, name): docstring for name, docstring in _docstrings(node)}


def _docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The names of annotated fields that have a docstring, each with the docstring on one line."""
    for field, following in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr):
            docstring = ast.literal_eval(following.value)
            yield ast.unparse(field.target), " ".join(docstring.split())
