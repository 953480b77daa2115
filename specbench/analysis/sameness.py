"""Whether two runs did the same work, and under which circumstances: from their headers.

The work is what the numbers are about: target, prompts, sampling, budget. Runs that differ there
are not comparable. The circumstances are machine, versions and settings: often the very thing that
a comparison is for, so they are only said. Whatever is about the contestants (a drafter's weights,
a method's defaults) is a circumstance too: the text to be produced is the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from specbench.analysis.header import UNKNOWN, gpu_in_use
from specbench.errors import UserError

Header: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in which two runs differ, with both values as text."""

    what: str
    first: str
    second: str

    def told(self, first: str = "the first", second: str = "the second") -> str:
        """The difference in words, with these names for the two runs."""
        return f"{self.what}: {self.first} in {first}, {self.second} in {second}"


def require_same_work(first: Header, second: Header) -> None:
    """Raise UserError, naming every difference, unless both runs did the same work."""
    differences = work_differences(first, second)
    if not differences:
        return
    ids = [str(header.get("id", "unknown")) for header in (first, second)]
    names = ids if ids[0] != ids[1] else ["the first", "the second"]
    listed = "\n".join(f"  {difference.told(*names)}" for difference in differences)
    raise UserError(
        f"The runs {' and '.join(ids)} did not do the same work:\n{listed}",
        "Repeat one of them with the other's options. `specbench compare --force` shows them side "
        "by side all the same, marked as not comparable.",
    )


def work_differences(first: Header, second: Header) -> tuple[Difference, ...]:
    """What keeps two runs from being comparable."""
    facts = dict(_WORK)
    shared = set(_at(first, _TEMPERATURES) or ()) & set(_at(second, _TEMPERATURES) or ())
    if any(shared):
        facts["--top-p"] = "spec.values.top_p"
    return (
        *_model(first, second),
        *_compare(facts, first, second),
        *_prompts(first, second),
    )


def circumstances(first: Header, second: Header) -> tuple[Difference, ...]:
    """What may explain a difference in speed besides what is compared."""
    facts = dict(_CIRCUMSTANCES)
    if _device(first) == _device(second) == "cpu":
        facts["CPU threads"] = "environment.torch.num_threads"
    if any(_at(first, _TEMPERATURES) or ()):
        facts["seed"] = "spec.values.seed"
    gpus = [_gpu(header) for header in (first, second)]
    return (
        *_compare({"driver": "driver", "power limit (W)": "power_limit_w"}, *gpus),
        *_compare(facts, first, second),
        *_methods(first, second),
        *_executions(first, second),
    )


def machine_difference(first: Header, second: Header) -> Difference | None:
    """Why seconds of one run say nothing about the other: another GPU, CPU or thread count."""
    names = [_machine(header) for header in (first, second)]
    return Difference("machine", *names) if names[0] != names[1] else None


_TEMPERATURES = "spec.values.temperatures"

_WORK = {
    "dtype": "model.dtype",
    "stand-in instead of the real weights": "model.is_stand_in",
    "budget (--max-new-tokens)": "spec.values.max_new_tokens",
    "chat template": "spec.values.template",
    "history of later turns": "spec.values.history",
    "--phases": "spec.values.phases",
}
_CIRCUMSTANCES = {
    "torch": "environment.torch.version",
    "CUDA": "environment.torch.cuda",
    "transformers": "environment.transformers",
    "float32 precision": "environment.torch.float32_matmul_precision",
    "environment variables": "environment.variables",
    "--execution": "spec.values.execution",
    "kernels": "kernels.name",
}
"""What is compared: its name to where it stands in a header."""

_DEFAULTS = {
    "model.is_stand_in": False,
    "spec.values.phases": False,
    "spec.values.execution": "auto",
    "spec.values.top_p": 1.0,
    "environment.variables": {},
    "kernels.name": "torch",
}
"""What a header means that does not say it, since it is from before there was a choice."""


def _compare(facts: Mapping[str, str], first: Header, second: Header) -> Iterator[Difference]:
    for what, path in facts.items():
        values = [_at(header, path) for header in (first, second)]
        if values[0] != values[1]:
            yield Difference(what, *map(_text, values))


def _model(first: Header, second: Header) -> Iterator[Difference]:
    """Another target, by its commit and its files: one model may lie in folders of two names."""
    headers = first, second
    names, revisions, files = (
        [_at(header, f"model.{key}") for header in headers] for key in ("name", "revision", "files")
    )
    if revisions[0] is not None and revisions[0] == revisions[1]:
        return
    differing = [*_files(files[0] or {}, files[1] or {})]
    if names[0] != names[1] and (differing or not all(files)):
        yield Difference("model", *map(_text, names))  # and so its files, as a matter of course
    elif differing:
        yield from differing
    elif not all(files) and revisions[0] != revisions[1]:
        yield Difference("model revision", *map(_text, revisions))


def _files(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    """The files of a checkpoint that differ, by hash, or by size where a hash is not known."""
    if not (first and second):
        return
    for name in sorted({*first, *second}):
        one, other = first.get(name), second.get(name)
        if one is None or other is None:
            yield Difference(f"file {name}", *("there" if f else "missing" for f in (one, other)))
            continue
        hashes = one.get("sha256"), other.get("sha256")
        if all(hashes) and hashes[0] != hashes[1]:
            yield Difference(f"file {name}", *(f"sha256 {text[:12]}…" for text in hashes))
        elif one.get("bytes") != other.get("bytes"):
            yield Difference(f"file {name}", *(f"{f.get('bytes'):,} bytes" for f in (one, other)))


def _prompts(first: Header, second: Header) -> Iterator[Difference]:
    """Tasks of both runs with other prompts. Another `--limit` on one file is no difference: the
    samples that both have are the same.
    """
    sets = [
        {one.get("task"): one for one in header.get("prompts") or ()} for header in (first, second)
    ]
    for task, one in sets[0].items():
        other = sets[1].get(task)
        if other is None or one.get("sha256") == other.get("sha256"):
            continue
        is_same_file = one.get("file_sha256") and one.get("file_sha256") == other.get("file_sha256")
        if not is_same_file:
            yield Difference(f"prompts of {task}", *map(_prompt_text, (one, other)))


def _methods(first: Header, second: Header) -> Iterator[Difference]:
    """The contestants' own weights and options in effect."""
    described = [header.get("methods") or {} for header in (first, second)]
    for name in described[0]:
        one, other = described[0][name], described[1].get(name)
        if other is None:
            continue
        yield from _compare({f"options of {name}": "options"}, one, other)
        files = [(about.get("weights") or {}).get("files") or {} for about in (one, other)]
        for difference in _files(*files):
            yield Difference(f"{name}'s {difference.what}", difference.first, difference.second)


def _executions(first: Header, second: Header) -> Iterator[Difference]:
    """Methods whose steps were replayed as graphs in one run only."""
    modes = [header.get("execution") or {} for header in (first, second)]
    for name in modes[0]:
        one, other = modes[0][name].get("mode"), modes[1].get(name, {}).get("mode")
        if other is not None and one != other:
            yield Difference(f"execution of {name}", _text(one), _text(other))


def _at(header: Header, path: str) -> Any:
    """The value at a dotted path, or what the header means by not saying it."""
    value: Any = header
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return _DEFAULTS.get(path) if value is None else value


def _device(header: Header) -> str:
    return str(_at(header, "spec.values.device")).partition(":")[0]


def _gpu(header: Header) -> Mapping[str, Any]:
    return gpu_in_use(_at(header, "environment") or {}, str(_at(header, "spec.values.device")))


def _machine(header: Header) -> str:
    if _device(header) == "cpu":
        threads = _text(_at(header, "environment.torch.num_threads"))
        return f"{_text(_at(header, 'environment.cpu.model'))}, threads: {threads}"
    return _text(_gpu(header).get("name"))


def _prompt_text(about: Mapping[str, Any]) -> str:
    return f"sha256 {str(about.get('sha256'))[:12]}… from {about.get('origin')}"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)
