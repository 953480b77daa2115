"""Make JSON Schemas of the run files."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import pairwise
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
"""Kinds of files -> their types, for `run.json`, a line of `samples.jsonl` (of a measured or an
imported run), a line of `trace.jsonl`, and `audit.json`.
"""

_MODULES = (
    *(shape, completion),
    *(machine, usage, model, methods, backend, spec, imported, header),
    *(audit, record, trace),
)
"""The modules that declare parts of the files."""


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file (a key of `KINDS`), with a description of each field.

    Raises:
        UserError: there is no such kind.
    """
    if kind not in KINDS:
        raise unknown_name("kind of file", kind, KINDS)
    schema = msgspec.json.schema(KINDS[kind])
    # Everything that the modules declare or import, by name, such as the classes of the files.
    declarations = {name: value for module in _MODULES for name, value in vars(module).items()}
    # "$defs" maps the name of a class to the JSON Schema of its objects.
    for class_name, definition in schema["$defs"].items():
        for field, description in _descriptions(declarations[class_name]).items():
            definition["properties"][field]["description"] = description
        # In some classes, the version ("schema") is not a field, but the tag of a msgspec class. A
        # tag has an "enum", and no docstring.
        version_field = definition["properties"].get("schema", {})
        if "enum" in version_field:
            version_field["description"] = "version of the run files"
    return schema


def _descriptions(declared_class: type) -> dict[str, str]:
    """A field's name in files -> its docstring, for all fields of a class and its parents.

    Python does not keep the docstrings of fields, so they are read from the source code.
    """
    is_struct = issubclass(declared_class, msgspec.Struct)
    fields = structs.fields(declared_class) if is_struct else ()
    names_in_files = {field.name: field.encode_name for field in fields}
    return {
        names_in_files.get(name, name): docstring
        for ancestor in declared_class.__mro__
        if ancestor.__module__.startswith("specbench.")
        for name, docstring in _docstrings(ancestor)
    }


def _docstrings(declared_class: type) -> Iterator[tuple[str, str]]:
    """Yield each field that a class itself declares with a docstring, as its name and the docstring
    on one line.
    """
    (class_statement,) = ast.parse(inspect.getsource(declared_class)).body
    assert isinstance(class_statement, ast.ClassDef)
    for field, following in pairwise(class_statement.body):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr):
            docstring = ast.literal_eval(following.value)
            yield ast.unparse(field.target), " ".join(docstring.split())
