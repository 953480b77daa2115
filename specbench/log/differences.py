"""Find the fields in which the headers of two runs differ. `options` explains their roles."""

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
    """The fields whose contents differ in two headers, with both contents as text.

    Notes are never compared. Hashes, a method's options and whole parts (such as the kernels of an
    older run) are not compared if one header lacks them. With `is_exact`, all others are compared,
    and the headers may be structs other than `RunHeader`. Without it, a field is compared if both
    headers have it (or it is a checkpoint's file), it has a name for readers (`what`), and it is
    not void. A field is void if a difference says nothing about the runs, such as the seed of runs
    that drew nothing, or the name of a model if the files are the same.
    """
    list_fields: Callable[[Any], Iterator[_Field]] = _exact_fields if is_exact else _named_fields
    # path, such as "model.dtype" -> field
    first_fields = {field.path: field for field in list_fields(first)}
    second_fields = {field.path: field for field in list_fields(second)}
    # A part is a group of fields, such as "gpu". A header without any of them lacks the part.
    first_parts = {field.part for field in first_fields.values()}
    second_parts = {field.part for field in second_fields.values()}
    shared_parts = first_parts & second_parts
    void_patterns: list[str] = []  # match the paths of void fields; "*" stands for any text
    if not is_exact:
        assert isinstance(first, RunHeader) and isinstance(second, RunHeader)
        void_patterns = [*_void_patterns(first, second)]
    # Maps a path and both contents to both texts, or to None if the contents do not differ.
    texts_of = _exact_texts if is_exact else _texts

    field_differences: list[Difference] = []
    for path, field in (first_fields | second_fields).items():
        is_void = any(fnmatchcase(path, pattern) for pattern in void_patterns)
        if is_void or field.part not in shared_parts:
            continue
        first_content = first_fields[path].content if path in first_fields else _MISSING
        second_content = second_fields[path].content if path in second_fields else _MISSING
        if both_texts := texts_of(path, first_content, second_content):
            difference = Difference(field.what, *both_texts, path, field.role, field.method)
            if path.endswith(".options"):  # a method's options: name -> value
                options = tuple(_option_changes(first_content, second_content))
                difference = replace(difference, options=options)
            field_differences.append(difference)
    return tuple(field_differences)


class _Field(NamedTuple):
    """A field of a header, with its place in the header."""

    content: Any
    """Value of the field."""
    path: str = ""
    """Path of the field in the header: "spec.seed"."""
    part: str = ""
    """Path of the group of fields with this field, such as "spec"."""
    role: Role = "note"
    """Role of the field, or of its part if the field has none."""
    what: str = ""
    """Name under which readers see the field, or an empty text."""
    method: str = ""
    """The method named at the end of `what`, or an empty text."""


_MISSING: Any = object()
"""Stands for the content of a field that is missing in a header."""


def _exact_fields(header: Struct) -> Iterator[_Field]:
    """All fields of a header except notes. The part of a field is the first name in its path."""
    for field in _walk(_Field(header), is_exact=True):
        part_path = field.path.partition(".")[0]
        is_absent_part = field.path == part_path and field.content is None  # "threads": None
        if not is_absent_part:
            yield field._replace(part=part_path)


def _named_fields(header: RunHeader) -> Iterator[_Field]:
    """The fields with a name for readers, and four facts that combine several fields."""
    gpu = header.environment.gpu(header.spec.values.device) or Gpu("")
    threads = header.threads.text if header.threads else str(header.num_threads)
    yield from (field for field in _walk(_Field(header)) if field.what)
    yield _Field(header.machine_name, "hardware", role="machine", what="machine")
    yield from (field for field in _walk(_Field(gpu, "gpu", role="machine")) if field.what)
    yield _Field(threads, "num_threads", role="machine", what="CPU threads")
    yield _Field(header.counting_rule, "counting", role="method", what="counting rule")


def _walk(field: _Field, owner: str = "", *, is_exact: bool = False) -> Iterator[_Field]:
    """The fields inside a field of a header, or the field itself if it is compared as a whole.

    Structs and mappings are split into their fields and entries. Notes are left out. Unless
    `is_exact`, a field with a name for readers (`what`) is not split. But if this name has "{}" for
    the key of an entry, as in "file {}", its entries are fields. `owner` is the key of the entry
    around the field, such as the method "pld" around its options. It is empty outside of entries.
    """
    content = field.content
    if isinstance(content, tuple) and content and isinstance(content[0], Struct):
        # The entries of a list get keys: their tasks, or else their numbers.
        content = {str(getattr(element, "task", i)): element for i, element in enumerate(content)}
    is_named_as_a_whole = not is_exact and field.what and "{}" not in field.what
    if isinstance(content, Mapping) and not is_named_as_a_whole:
        for key, entry_content in content.items():
            what = field.what.replace("{}", key)
            inner_field = _Field(
                entry_content, f"{field.path}.{key}", part=field.path, role=field.role, what=what
            )
            yield from _walk(inner_field, key, is_exact=is_exact)
    elif isinstance(content, Struct) and not is_named_as_a_whole:
        # `role` is None for a field with its parent's role. `shown_name` is for readers, or empty.
        for field_role in field_roles(type(content)):
            if field_role.role == "note":
                continue
            path = f"{field.path}.{field_role.field}".removeprefix(".")
            # An option is "spec.seed", not "spec.values.seed": other fields of `spec` are notes.
            path = path.replace("spec.values", "spec")
            what = field_role.shown_name
            if what and owner:
                what = f"{what} of {owner}"
            inner_field = _Field(
                content=getattr(content, field_role.field),
                path=path,
                part=field.path,
                role=field_role.role or field.role,
                what=what,
                method=owner,
            )
            yield from _walk(inner_field, owner, is_exact=is_exact)
    else:
        yield field._replace(content=content)


def _void_patterns(first: RunHeader, second: RunHeader) -> Iterator[str]:
    """Patterns for the paths of void fields, in which "*" stands for any text.

    If the two headers differ in a void field, this says nothing about the runs.
    """
    # Facts that the files of an imported run do not give. Other runs have all facts.
    yield from (*first.untold_patterns, *second.untold_patterns)
    # All GPUs of the machine. The GPU that a run used is compared separately (`_named_fields`).
    yield "environment.gpus.*"

    # Settings of sampling, if the runs share no temperature above 0: greedy decoding draws nothing.
    first_values, second_values = first.spec.values, second.spec.values
    shared_temperatures = {*first_values.temperatures} & {*second_values.temperatures}
    if not any(temperature > 0 for temperature in shared_temperatures):
        yield from ("spec.seed", "spec.top_p", "spec.top_k")

    # The hash of the chat template, if the template's options differ: the options are compared.
    choices = {(values.template, values.template_args) for values in (first_values, second_values)}
    if len(choices) > 1:
        yield "model.template_sha256"

    # CPU threads, unless both runs computed the model on a CPU ("cpu", not "cuda:1") and without
    # servers.
    device_kinds = {values.device.partition(":")[0] for values in (first_values, second_values)}
    if device_kinds != {"cpu"} or first.servers or second.servers:
        yield "num_threads"

    # The hardware, whose text includes the number of threads. If both runs measured which number is
    # the fastest on the same kind of processor, another number is a result, not a condition.
    are_threads_measured = all(
        header.threads and header.threads.chosen_by == "measured" for header in (first, second)
    )
    if are_threads_measured and first.environment.cpu.model == second.environment.cpu.model:
        yield "hardware"

    yield from _void_model_patterns(first.model, second.model)


def _void_model_patterns(first: ModelHeader, second: ModelHeader) -> Iterator[str]:
    """Patterns ("*" is any text) for the paths of fields in which two models need not be compared.

    Another model is then one difference instead of one per field. Models with the same revision
    (the commit on the Hub, or None for a local folder) or with the same files are the same model,
    whatever their names are. `files` maps the name of a checkpoint's file to its hash and size.
    """
    is_same_revision = first.revision is not None and first.revision == second.revision
    if is_same_revision:
        yield from ("model.name", "model.revision", "model.files.*")
    elif first.files and second.files:
        yield "model.revision"  # the hashes of the files identify a model better
        # A stand-in is a small model in a real model's shape. Its `files` are the small model's.
        is_same_kind = (first.is_stand_in, first.shape) == (second.is_stand_in, second.shape)
        if is_same_kind and _have_same_files(first.files, second.files):
            yield "model.name"  # a copy in another folder
        elif first.name != second.name:
            yield "model.files.*"  # the name already shows that the models differ
    elif first.name != second.name:
        yield "model.revision"  # the name already shows that the models differ


def _have_same_files(first: Mapping[str, FileHeader], second: Mapping[str, FileHeader]) -> bool:
    names = {*first, *second}
    return not any(_file_texts(first.get(name), second.get(name)) for name in names)


def _texts(path: str, first: Any, second: Any) -> tuple[str, str] | None:
    """The contents of a field in two headers, in words, or None if they do not differ.

    A content is `_MISSING` if a header lacks the field. Only a checkpoint's file differs then.
    """
    if isinstance(first, FileHeader) or isinstance(second, FileHeader):
        first_file = None if first is _MISSING else first
        second_file = None if second is _MISSING else second
        return _file_texts(first_file, second_file)  # a file of a checkpoint
    if first is _MISSING or second is _MISSING:
        return None
    if path.endswith(".options"):  # a method's options: name -> value
        # Only names that both headers have: older versions of a method had fewer options.
        changed_options = _changed_options(first, second)
        first = {name: first[name] for name in changed_options}
        second = {name: second[name] for name in changed_options}
    if path.endswith("sha256") and None in (first, second):  # no hash, or unknown
        return None
    if isinstance(first, PromptsHeader):
        return _prompt_texts(first, second)  # the prompts of a task
    return (_content_text(first), _content_text(second)) if first != second else None


def _changed_options(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The names of the options that both runs have, but with different values."""
    return [name for name in sorted(first.keys() & second.keys()) if first[name] != second[name]]


def _option_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """The changed options of a method, each with both values: "num_tokens 5 -> 3"."""
    for name in _changed_options(first, second):
        texts = (_content_text(options[name]) for options in (first, second))
        yield f"{name} {' -> '.join(texts)}"


def _exact_texts(path: str, first: Any, second: Any) -> tuple[str, str] | None:
    """The contents of a field in two headers, in JSON, or None if they do not differ.

    A content is `_MISSING` if a header lacks the field, and becomes null. If one header lacks an
    option, or has None for a hash, this is not a difference.
    """
    if _MISSING in (first, second) and ".options." in path:
        return None
    # The contents in types that JSON has.
    first_plain = None if first is _MISSING else to_builtins(first)
    second_plain = None if second is _MISSING else to_builtins(second)
    is_hash_unknown = path.endswith("sha256") and None in (first_plain, second_plain)
    if is_hash_unknown or first_plain == second_plain:
        return None
    return json.dumps(first_plain), json.dumps(second_plain)


def _file_texts(first: FileHeader | None, second: FileHeader | None) -> tuple[str, str] | None:
    """The hashes or sizes of a file, or "there" and "missing", or None if they do not differ."""
    if first is None or second is None:
        return ("there" if first else "missing", "there" if second else "missing")
    if first.sha256 and second.sha256 and first.sha256 != second.sha256:
        return f"sha256 {first.sha256[:12]}…", f"sha256 {second.sha256[:12]}…"
    if first.bytes != second.bytes:
        return f"{first.bytes:,} bytes", f"{second.bytes:,} bytes"
    return None


def _prompt_texts(first: PromptsHeader, second: PromptsHeader) -> tuple[str, str] | None:
    """The hash and the origin of a task's prompts in two runs, or None if they do not differ.

    Another `--limit` on the same file is not a difference, since the shared samples agree.
    """
    is_same_file = first.file_sha256 and first.file_sha256 == second.file_sha256
    if is_same_file or first.sha256 == second.sha256:
        return None
    return _hash_and_origin(first), _hash_and_origin(second)


def _hash_and_origin(prompts: PromptsHeader) -> str:
    return f"sha256 {prompts.sha256[:12]}… from {prompts.origin}"


def _content_text(content: Any) -> str:
    """The content of a field in words. An empty content is "none", and None is "unknown".

    A mapping is shown as "ngram=2, num_tokens=5", a tuple as its elements.
    """
    if isinstance(content, Mapping):
        return ", ".join(f"{key}={content[key]}" for key in sorted(content)) or "none"
    if isinstance(content, tuple):
        return ",".join(map(_content_text, content)) or "none"
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, float):
        return f"{content:g}"
    return UNKNOWN if content is None else str(content) or "none"
