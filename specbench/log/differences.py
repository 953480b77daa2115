"""Differences between two runs, from their headers, and what each asker makes of them.

Runs that differ in the work are not comparable. Machine, versions and methods' options are
often the very thing that a comparison is for, so differences in them are only mentioned. Each
field declares which of these it is (see `options`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from specbench.errors import UserError
from specbench.log.header import FileHeader, PromptsHeader, RunHeader
from specbench.log.machine import UNKNOWN, Gpu
from specbench.log.options import Role, field_roles


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two runs differ, with both values as text.

    `field` is its path in the header, such as "model.dtype"; `what` is its name for readers.
    """

    what: str
    first: str
    second: str
    field: str
    role: Role

    def describe(self, first: str = "the first", second: str = "the second") -> str:
        """The difference in words, with these names of the two runs."""
        return f"{self.what}: {self.first} in {first}, {self.second} in {second}"


class Policy(NamedTuple):
    """Policy of an asker: roles, or fields with "*" for any part of a path.

    Runs that differ in `equal` do not fit together; differences in `told` are mentioned.
    Fields in `free` may differ. With `is_exact`, void fields and fields without a name for
    readers count too.
    """

    equal: tuple[str, ...]
    told: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    is_exact: bool = False

    def conflicts(self, first: Struct, second: Struct) -> tuple[Difference, ...]:
        """The differences for which two runs do not fit together."""
        found = differences(first, second, is_exact=self.is_exact)
        return tuple(one for one in found if self._place(one) == "equal")

    def cautions(self, first: RunHeader, second: RunHeader) -> tuple[Difference, ...]:
        """The differences of runs that fit together, which may explain one in their numbers."""
        found = differences(first, second, is_exact=self.is_exact)
        return tuple(one for one in found if self._place(one) == "told")

    def _place(self, difference: Difference) -> str:
        for name in ("free", "equal", "told"):
            for pattern in getattr(self, name):
                if difference.role == pattern or fnmatchcase(difference.field, pattern):
                    return name
        return ""


_CELLS = ("spec.methods", "spec.temperatures", "spec.concurrency", "spec.request_rates",
          "spec.backend", "spec.serving_engine")  # fmt: skip
"""Of these, compared runs need to have only a part in common."""
COMPARE = Policy(equal=("work",), told=("method", "draw", "machine"), free=("hardware", *_CELLS))
CHECK = Policy(equal=("work", "methods.*.options"), told=("hardware",), free=_CELLS)
"""Speed is checked on equal hardware only, and nothing if settings were chosen differently."""
POOL = Policy(equal=("work", "spec.methods", "hardware"), told=("method", "draw", "machine"))
MERGE = Policy(equal=("work", "method", "draw"), told=("machine",))
RESUME = Policy(equal=("spec.*", "work", "method", "draw"), told=("machine",), is_exact=True)
"""Another machine needs --force."""
REPLAY = Policy(equal=("model.files.*", "prompts.*.sha256"), is_exact=True)
_VERSIONS = ("specbench", "git.commit", "torch.version", "transformers")
WORKERS = Policy(
    equal=("work", "method", *(f"environment.{name}" for name in _VERSIONS)), is_exact=True
)
"""Of setups, not headers: the files and versions that the machines of one run share."""
PROFILE = Policy(
    equal=("model.*", "methods.*.weights.*"),
    free=("model.name", "model.label", "model.source", "model.revision", "*.weights.revision"),
    is_exact=True,
)
"""Of setups: what an acceptance profile belongs to."""


def require_same_work(first: RunHeader, second: RunHeader) -> None:
    """Raise UserError, naming every difference, unless both runs did the same work."""
    if not (found := COMPARE.conflicts(first, second)):
        return
    listed = "\n".join(f"  {text}" for text in in_words(found, first, second))
    raise UserError(
        f"The runs {first.id} and {second.id} did not do the same work:\n{listed}",
        "Repeat one of them with the other's options. `specbench compare --force` shows them side "
        "by side all the same, marked as not comparable.",
    )


def in_words(found: Iterable[Difference], first: RunHeader, second: RunHeader) -> list[str]:
    """The differences in words, with the names of the two runs if they have different ones."""
    names = [first.id, second.id] if first.id != second.id else []
    return [difference.describe(*names) for difference in found]


def differences(first: Struct, second: Struct, *, is_exact: bool = False) -> tuple[Difference, ...]:
    """The fields in which two runs differ, but for notes.

    What one header does not know, as a hash or the kernels of an older one, equals anything.
    Unless `is_exact`, fields without a name for readers and void ones are left out: a seed
    that nothing was drawn with, the name of a model whose files are the same.
    """
    headers: tuple[Any, Any] = first, second
    walk: Callable[[Any], Iterator[_Leaf]] = _exact_leaves if is_exact else _told_leaves
    sides = [{leaf.field: leaf for leaf in walk(header)} for header in headers]
    parts = [{leaf.part for leaf in side.values()} for side in sides]
    void = () if is_exact else tuple(_void(*headers))
    compare = _exact_texts if is_exact else _texts
    found = []
    for field, leaf in (sides[0] | sides[1]).items():
        is_known = all(leaf.part in known for known in parts)
        if is_known and not any(fnmatchcase(field, pattern) for pattern in void):
            values = (side[field].value if field in side else _MISSING for side in sides)
            if texts := compare(field, *values):
                found.append(Difference(leaf.what, *texts, field, leaf.role))
    return tuple(found)


class _Leaf(NamedTuple):
    """A compared value. A header without any leaf of `part` does not know this part."""

    value: Any
    field: str = ""
    part: str = ""
    role: Role = "note"
    what: str = ""


_MISSING = object()


def _exact_leaves(header: Struct) -> Iterator[_Leaf]:
    for leaf in _walk(_Leaf(header), is_exact=True):
        part = leaf.field.partition(".")[0]
        if not (leaf.field == part and leaf.value is None):
            yield leaf._replace(part=part)


def _told_leaves(header: RunHeader) -> Iterator[_Leaf]:
    """The fields with a name for readers, and what follows from several fields."""
    gpu = header.environment.gpu(header.spec.values.device) or Gpu("")
    threads = header.threads.text if header.threads else str(header.num_threads)
    yield from (leaf for leaf in _walk(_Leaf(header)) if leaf.what)
    yield _Leaf(header.machine_name, "hardware", role="machine", what="machine")
    yield from (leaf for leaf in _walk(_Leaf(gpu, "gpu", role="machine")) if leaf.what)
    yield _Leaf(threads, "num_threads", role="machine", what="CPU threads")


def _walk(whole: _Leaf, owner: str = "", *, is_exact: bool = False) -> Iterator[_Leaf]:
    """The values in a part of a header. `owner` is the key of the entry that the part is."""
    value, field, _, role, what = whole
    if isinstance(value, tuple) and value and isinstance(value[0], Struct):
        value = {str(getattr(one, "task", i)): one for i, one in enumerate(value)}
    is_told_whole = not is_exact and what and "{}" not in what
    if isinstance(value, Mapping) and not is_told_whole:
        for key, entry in value.items():
            below = _Leaf(entry, f"{field}.{key}", field, role, what.replace("{}", key))
            yield from _walk(below, key, is_exact=is_exact)
    elif isinstance(value, Struct) and not is_told_whole:
        for one in field_roles(type(value)):
            if one.role != "note":
                path = f"{field}.{one.field}".removeprefix(".").replace("spec.values", "spec")
                name = f"{one.told} of {owner}" if one.told and owner else one.told
                below = _Leaf(getattr(value, one.field), path, field, one.role or role, name)
                yield from _walk(below, owner, is_exact=is_exact)
    else:
        yield whole._replace(value=value)


def _void(first: RunHeader, second: RunHeader) -> Iterator[str]:
    """Patterns of the fields that say nothing about these two runs."""
    yield "environment.gpus.*"  # but for the run's own, which is compared apart
    values = first.spec.values, second.spec.values
    if not any({*values[0].temperatures} & {*values[1].temperatures}):
        yield from ("spec.seed", "spec.top_p", "spec.top_k")
    if values[0].template != values[1].template:
        yield "model.template_sha256"  # other templates have other texts
    is_on_cpu = {one.device.partition(":")[0] for one in values} == {"cpu"}
    if not is_on_cpu or first.servers or second.servers:
        yield "num_threads"
    is_automatic = all(
        one.threads and one.threads.chosen_by == "measured" for one in (first, second)
    )
    if is_automatic and first.environment.cpu.model == second.environment.cpu.model:
        yield "hardware"  # the number is what this machine chose
    models = first.model, second.model
    if models[0].revision is not None and models[0].revision == models[1].revision:
        yield from ("model.name", "model.revision", "model.files.*")
    elif models[0].files and models[1].files:
        yield "model.revision"
        files = [models[0].files, models[1].files]
        names = {*files[0], *files[1]}
        is_same = not any(_file_texts(files[0].get(name), files[1].get(name)) for name in names)
        if is_same:
            yield "model.name"
        elif models[0].name != models[1].name:
            yield "model.files.*"  # other models have other files
    elif models[0].name != models[1].name:
        yield "model.revision"


def _texts(field: str, first: Any, second: Any) -> tuple[str, str] | None:
    """Two values in words, if they differ."""
    if isinstance(first, FileHeader) or isinstance(second, FileHeader):
        return _file_texts(*(None if one is _MISSING else one for one in (first, second)))
    if first is _MISSING or second is _MISSING:
        return None
    if field.endswith(".options"):  # an older version did not know every one
        first, second = (
            {k: one[k] for k in first.keys() & second.keys()} for one in (first, second)
        )
    if field.endswith("sha256") and None in (first, second):
        return None
    if isinstance(first, PromptsHeader):
        return _prompt_texts(first, second)
    return (_text(first), _text(second)) if first != second else None


def _exact_texts(field: str, first: Any, second: Any) -> tuple[str, str] | None:
    """Two values in JSON, if they differ. Older versions did not hash every file, nor have every
    option of a method.
    """
    if _MISSING in (first, second) and ".options." in field:
        return None
    values = [None if one is _MISSING else to_builtins(one) for one in (first, second)]
    if values[0] == values[1] or (None in values and field.endswith("sha256")):
        return None
    return json.dumps(values[0]), json.dumps(values[1])


def _file_texts(first: FileHeader | None, second: FileHeader | None) -> tuple[str, str] | None:
    """Two files of a checkpoint: by hash, or by size where a hash is not known."""
    if first is None or second is None:
        return ("there" if first else "missing", "there" if second else "missing")
    if first.sha256 and second.sha256 and first.sha256 != second.sha256:
        return f"sha256 {first.sha256[:12]}…", f"sha256 {second.sha256[:12]}…"
    if first.bytes != second.bytes:
        return f"{first.bytes:,} bytes", f"{second.bytes:,} bytes"
    return None


def _prompt_texts(first: PromptsHeader, second: PromptsHeader) -> tuple[str, str] | None:
    """The prompts of a task. Another `--limit` on one file makes no difference: the samples
    that both have are the same.
    """
    is_same_file = first.file_sha256 and first.file_sha256 == second.file_sha256
    if is_same_file or first.sha256 == second.sha256:
        return None
    one, other = (f"sha256 {about.sha256[:12]}… from {about.origin}" for about in (first, second))
    return one, other


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value)) or "none"
    if isinstance(value, tuple):
        return ",".join(map(_text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return UNKNOWN if value is None else str(value) or "none"
