"""Differences between two runs' headers, by the roles of fields (see `options`, `policies`)."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from specbench.log.difference import Difference
from specbench.log.header import PromptsHeader, RunHeader
from specbench.log.machine import UNKNOWN, Gpu
from specbench.log.model import FileHeader, ModelHeader
from specbench.log.options import Role, field_roles


def differences(first: Struct, second: Struct, *, is_exact: bool = False) -> tuple[Difference, ...]:
    """The fields in which two runs differ, except notes: fields that are never compared.

    `first` and `second` are headers (`RunHeader` unless `is_exact`). A value that one header does
    not know, such as a hash or the kernels of an older run, equals anything. Unless `is_exact`,
    fields without a name for readers are left out, and so are void fields, whose difference says
    nothing: a seed without any draws, the name of a model whose files are the same. A field has a
    path ("model.dtype"), the part it belongs to, a name for readers (`what`) and a role such as
    "machine", which says what a difference concerns.
    """
    list_fields: Callable[[Any], Iterator[_Field]] = _exact_fields if is_exact else _named_fields
    first_fields = {field.path: field for field in list_fields(first)}
    second_fields = {field.path: field for field in list_fields(second)}
    # A header without any field of a part, such as "gpu", does not know the part.
    first_parts = {field.part for field in first_fields.values()}
    second_parts = {field.part for field in second_fields.values()}
    known_parts = first_parts & second_parts
    void_patterns: list[str] = []  # of paths, "*" for any text
    if not is_exact:
        assert isinstance(first, RunHeader) and isinstance(second, RunHeader)
        void_patterns = [*_void_patterns(first, second)]
    texts_of = _exact_texts if is_exact else _texts  # both contents as text; None if equal

    different: list[Difference] = []
    for path, field in (first_fields | second_fields).items():
        is_void = any(fnmatchcase(path, pattern) for pattern in void_patterns)
        if is_void or field.part not in known_parts:
            continue
        first_content = first_fields[path].content if path in first_fields else _MISSING
        second_content = second_fields[path].content if path in second_fields else _MISSING
        if both_texts := texts_of(path, first_content, second_content):
            difference = Difference(field.what, *both_texts, path, field.role, field.method)
            if path.endswith(".options"):  # of a method, as a whole
                options = tuple(_option_changes(first_content, second_content))
                difference = replace(difference, options=options)
            different.append(difference)
    return tuple(different)


class _Field(NamedTuple):
    """A field of a header that is compared as a whole."""

    content: Any
    """Value of the field."""
    path: str = ""
    """Path of the field in the header: "spec.seed"."""
    part: str = ""
    """The part of the header with the field. A header knows a part if it has any of its fields."""
    role: Role = "note"
    """Role of the field, or else of its part."""
    what: str = ""
    """Name of the field for readers; empty if it has none."""
    method: str = ""
    """The method at the end of `what`; empty if `what` names none."""


_MISSING: Any = object()
"""The content of a field that a header does not have."""


def _exact_fields(header: Struct) -> Iterator[_Field]:
    """All fields of all parts that the header has."""
    for field in _walk(_Field(header), is_exact=True):
        part = field.path.partition(".")[0]
        is_absent_part = field.path == part and field.content is None
        if not is_absent_part:
            yield field._replace(part=part)


def _named_fields(header: RunHeader) -> Iterator[_Field]:
    """The fields with a name for readers, and values that follow from several fields."""
    gpu = header.environment.gpu(header.spec.values.device) or Gpu("")
    threads = header.threads.text if header.threads else str(header.num_threads)
    yield from (field for field in _walk(_Field(header)) if field.what)
    yield _Field(header.machine_name, "hardware", role="machine", what="machine")
    yield from (field for field in _walk(_Field(gpu, "gpu", role="machine")) if field.what)
    yield _Field(threads, "num_threads", role="machine", what="CPU threads")
    yield _Field(header.counting_rule, "counting", role="method", what="counting rule")


def _walk(field: _Field, owner: str = "", *, is_exact: bool = False) -> Iterator[_Field]:
    """The fields inside a field of a header, or the field itself if it is compared as a whole.

    Fields of structs and entries of mappings are walked. A field's role, such as "machine", says
    what a difference concerns; notes, which are never compared, are left out. Unless `is_exact`, a
    field with a name for readers (`what`) is compared as a whole, except if the name has "{}",
    which stands for the key of an entry. `owner` is the key of the field's entry ("pld" for the
    options of this method), or empty. The part of a field is its parent's path.
    """
    content = field.content
    if isinstance(content, tuple) and content and isinstance(content[0], Struct):
        # Entries are compared by their task, in any order, or else by their number.
        content = {str(getattr(entry, "task", i)): entry for i, entry in enumerate(content)}
    is_named_as_a_whole = not is_exact and field.what and "{}" not in field.what
    if isinstance(content, Mapping) and not is_named_as_a_whole:
        for key, entry_content in content.items():
            shown_name = field.what.replace("{}", key)
            inner_field = _Field(  # content, path, part, role, name for readers
                entry_content, f"{field.path}.{key}", field.path, field.role, shown_name
            )
            yield from _walk(inner_field, key, is_exact=is_exact)
    elif isinstance(content, Struct) and not is_named_as_a_whole:
        # Of each field of the struct: its name, its own role or None, its name for readers or "".
        for field_role in field_roles(type(content)):
            if field_role.role == "note":
                continue
            path = f"{field.path}.{field_role.field}".removeprefix(".")
            # An option is "spec.seed", not "spec.values.seed": all else in spec is notes.
            path = path.replace("spec.values", "spec")
            shown_name = field_role.shown_name
            if shown_name and owner:
                shown_name = f"{shown_name} of {owner}"
            role = field_role.role or field.role  # its own, else its parent's
            inner_field = _Field(  # content, path, part, role, name for readers
                getattr(content, field_role.field), path, field.path, role, shown_name, owner
            )
            yield from _walk(inner_field, owner, is_exact=is_exact)
    else:
        yield field._replace(content=content)


def _void_patterns(first: RunHeader, second: RunHeader) -> Iterator[str]:
    """Patterns of the paths of fields ("*" for any text) whose difference says nothing about the
    two runs with these headers. `threads` is None if unknown, `servers` empty for the engine.
    """
    yield from (*first.untold_patterns, *second.untold_patterns)
    # The machine's other GPUs. The run's own is compared by `_named_fields`.
    yield "environment.gpus.*"

    # Settings of sampling, if no temperature of both is above 0: greedy decoding draws nothing.
    first_values, second_values = first.spec.values, second.spec.values
    shared_temperatures = {*first_values.temperatures} & {*second_values.temperatures}
    if not any(temperature > 0 for temperature in shared_temperatures):
        yield from ("spec.seed", "spec.top_p", "spec.top_k")

    # Other templates and values have other texts, and their choice is compared already.
    choices = {(values.template, values.template_args) for values in (first_values, second_values)}
    if len(choices) > 1:
        yield "model.template_sha256"

    # CPU threads compute the model only where both runs were on a CPU ("cpu"), in this process.
    device_kinds = {values.device.partition(":")[0] for values in (first_values, second_values)}
    if device_kinds != {"cpu"} or first.servers or second.servers:
        yield "num_threads"

    # The field "hardware" has the threads too. If each run measured which number is the fastest
    # on its machine, another number is a result and not a condition.
    are_threads_measured = all(
        header.threads and header.threads.chosen_by == "measured" for header in (first, second)
    )
    if are_threads_measured and first.environment.cpu.model == second.environment.cpu.model:
        yield "hardware"

    yield from _void_model_patterns(first.model, second.model)


def _void_model_patterns(first: ModelHeader, second: ModelHeader) -> Iterator[str]:
    """Patterns of the paths of a model's fields ("*" for any text) that add nothing: a different
    model is shown as one difference.

    A model is identified by its revision (commit on the Hub, None if local) or by its files (by
    name, with hashes), whichever both runs know. Its name counts only without them.
    """
    is_same_revision = first.revision is not None and first.revision == second.revision
    if is_same_revision:
        yield from ("model.name", "model.revision", "model.files.*")
    elif first.files and second.files:
        yield "model.revision"  # files identify it better
        # A stand-in has the files of the small model inside it, whatever its shape.
        is_same_kind = (first.is_stand_in, first.shape) == (second.is_stand_in, second.shape)
        if is_same_kind and _have_same_files(first.files, second.files):
            yield "model.name"  # a copy in another folder
        elif first.name != second.name:
            yield "model.files.*"  # other models have other files
    elif first.name != second.name:
        yield "model.revision"


def _have_same_files(first: Mapping[str, FileHeader], second: Mapping[str, FileHeader]) -> bool:
    names = {*first, *second}
    return not any(_file_texts(first.get(name), second.get(name)) for name in names)


def _texts(path: str, first: Any, second: Any) -> tuple[str, str] | None:
    """The contents of a field of two headers in words; None if they do not differ.

    `path` is the field's path in the header. A content is `_MISSING` if a header lacks the field.
    """
    if isinstance(first, FileHeader) or isinstance(second, FileHeader):
        first_file = None if first is _MISSING else first
        second_file = None if second is _MISSING else second
        return _file_texts(first_file, second_file)  # hashes or sizes of a checkpoint's file
    if first is _MISSING or second is _MISSING:
        return None
    if path.endswith(".options"):  # of a method, by name; older versions did not know every one
        changed_options = _changed_options(first, second)
        first = {name: first[name] for name in changed_options}
        second = {name: second[name] for name in changed_options}
    if path.endswith("sha256") and None in (first, second):  # an unknown hash equals any
        return None
    if isinstance(first, PromptsHeader):
        return _prompt_texts(first, second)  # hashes of a task's prompts
    return (_content_text(first), _content_text(second)) if first != second else None


def _changed_options(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The options with another value in the second run, of those that both runs know."""
    return [name for name in sorted(first.keys() & second.keys()) if first[name] != second[name]]


def _option_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """The changed options of a method, each with both values: "num_tokens 5 -> 3"."""
    for name in _changed_options(first, second):
        texts = (_content_text(options[name]) for options in (first, second))
        yield f"{name} {' -> '.join(texts)}"


def _exact_texts(path: str, first: Any, second: Any) -> tuple[str, str] | None:
    """The contents of a field of two headers in JSON; None if they do not differ.

    `path` is the field's path in the header. A content is `_MISSING` if a header lacks the field.
    Older versions did not hash every file (None), nor have every option of a method.
    """
    if _MISSING in (first, second) and ".options." in path:
        return None
    first_plain = None if first is _MISSING else to_builtins(first)  # as JSON can hold it
    second_plain = None if second is _MISSING else to_builtins(second)
    is_hash_unknown = path.endswith("sha256") and None in (first_plain, second_plain)
    if is_hash_unknown or first_plain == second_plain:
        return None
    return json.dumps(first_plain), json.dumps(second_plain)


def _file_texts(first: FileHeader | None, second: FileHeader | None) -> tuple[str, str] | None:
    """Two files of a checkpoint: by hash, or by size if a hash is unknown."""
    if first is None or second is None:
        return ("there" if first else "missing", "there" if second else "missing")
    if first.sha256 and second.sha256 and first.sha256 != second.sha256:
        return f"sha256 {first.sha256[:12]}…", f"sha256 {second.sha256[:12]}…"
    if first.bytes != second.bytes:
        return f"{first.bytes:,} bytes", f"{second.bytes:,} bytes"
    return None


def _prompt_texts(first: PromptsHeader, second: PromptsHeader) -> tuple[str, str] | None:
    """The prompts of a task in two runs, by hash and origin; None if they do not differ.

    Another `--limit` on the same file is no difference: the samples that both runs have are equal.
    """
    is_same_file = first.file_sha256 and first.file_sha256 == second.file_sha256
    if is_same_file or first.sha256 == second.sha256:
        return None
    return _hash_and_origin(first), _hash_and_origin(second)


def _hash_and_origin(prompts: PromptsHeader) -> str:
    return f"sha256 {prompts.sha256[:12]}… from {prompts.origin}"


def _content_text(content: Any) -> str:
    """The content of a header's field in words: "none" if it is empty, "unknown" for None."""
    if isinstance(content, Mapping):
        return ", ".join(f"{key}={content[key]}" for key in sorted(content)) or "none"
    if isinstance(content, tuple):
        return ",".join(map(_content_text, content)) or "none"
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, float):
        return f"{content:g}"
    return UNKNOWN if content is None else str(content) or "none"
