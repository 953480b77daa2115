"""Comparability of two runs, from their headers: differences in work and in circumstances.

The work is the subject of the numbers: target, prompts, sampling, budget. Runs that differ in it
are not comparable. Circumstances are machine, versions and settings, often the very thing that a
comparison is for, so they are only reported. Facts about methods (a drafter's weights, options in
effect) are circumstances too, since the text to produce is the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from specbench.errors import UserError
from specbench.log.header import FileHeader, PromptsHeader, RunHeader
from specbench.log.machine import UNKNOWN, Gpu


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact in which two runs differ, with both values as text."""

    what: str
    first: str
    second: str

    def describe(self, first: str = "the first", second: str = "the second") -> str:
        """The difference in words, with these names of the two runs."""
        return f"{self.what}: {self.first} in {first}, {self.second} in {second}"


def require_same_work(first: RunHeader, second: RunHeader) -> None:
    """Raise UserError, naming every difference, unless both runs did the same work."""
    differences = work_differences(first, second)
    if not differences:
        return
    ids = [header.id for header in (first, second)]
    names = ids if ids[0] != ids[1] else ["the first", "the second"]
    listed = "\n".join(f"  {difference.describe(*names)}" for difference in differences)
    raise UserError(
        f"The runs {' and '.join(ids)} did not do the same work:\n{listed}",
        "Repeat one of them with the other's options. `specbench compare --force` shows them side "
        "by side all the same, marked as not comparable.",
    )


def work_differences(first: RunHeader, second: RunHeader) -> tuple[Difference, ...]:
    """The differences that make two runs incomparable."""
    facts = dict(_WORK)
    shared = {*first.spec.values.temperatures} & {*second.spec.values.temperatures}
    if any(shared):
        facts |= {"--top-p": "spec.values.top_p", "--top-k": "spec.values.top_k"}
    return (
        *_model(first, second),
        *_compare(facts, first, second),
        *_prompts(first, second),
    )


def circumstances(first: RunHeader, second: RunHeader) -> tuple[Difference, ...]:
    """Differences that may explain a difference in speed."""
    facts = dict(_CIRCUMSTANCES)
    if {_device(first), _device(second)} == {"cpu"} and not (first.servers or second.servers):
        facts["CPU threads"] = "num_threads"
    if any(first.spec.values.temperatures):
        facts["seed"] = "spec.values.seed"
    gpus = [_gpu(header) or Gpu("") for header in (first, second)]
    return (
        *_compare({"driver": "driver", "power limit (W)": "power_limit_w"}, *gpus),
        *_compare(facts, first, second),
        *_kernel_difference(first, second),
        *method_differences(first, second),
        *_executions(first, second),
    )


def machine_difference(first: RunHeader, second: RunHeader) -> Difference | None:
    """A difference in GPU, CPU or thread count, which makes seconds incomparable."""
    names = [machine_name(header) for header in (first, second)]
    return Difference("machine", *names) if names[0] != names[1] else None


_WORK = {
    "dtype": "model.dtype",
    "quantised weights": "model.quantization",
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
    "--concurrency": "spec.values.concurrency",
    "--request-rate": "spec.values.request_rates",
}
"""The compared parts: name -> place in a header."""


def _compare(facts: Mapping[str, str], first: object, second: object) -> Iterator[Difference]:
    for what, path in facts.items():
        values = [attrgetter(path)(about) for about in (first, second)]
        if values[0] != values[1]:
            yield Difference(what, *map(_text, values))


def _model(first: RunHeader, second: RunHeader) -> Iterator[Difference]:
    """Another target, by its commit and its files: one model may lie in folders of two names."""
    models = first.model, second.model
    names, revisions = [model.name for model in models], [model.revision for model in models]
    files = [model.files for model in models]
    if revisions[0] is not None and revisions[0] == revisions[1]:
        return
    differing = [*_files(*files)]
    if names[0] != names[1] and (differing or not all(files)):
        yield Difference("model", *map(_text, names))  # and so its files, as a matter of course
    elif differing:
        yield from differing
    elif not all(files) and revisions[0] != revisions[1]:
        yield Difference("model revision", *map(_text, revisions))


def _files(
    first: Mapping[str, FileHeader], second: Mapping[str, FileHeader]
) -> Iterator[Difference]:
    """The files of a checkpoint that differ, by hash, or by size where a hash is not known."""
    if not (first and second):
        return
    for name in sorted({*first, *second}):
        one, other = first.get(name), second.get(name)
        if one is None or other is None:
            yield Difference(f"file {name}", *("there" if f else "missing" for f in (one, other)))
            continue
        if one.sha256 and other.sha256 and one.sha256 != other.sha256:
            hashes = one.sha256, other.sha256
            yield Difference(f"file {name}", *(f"sha256 {text[:12]}…" for text in hashes))
        elif one.bytes != other.bytes:
            yield Difference(f"file {name}", *(f"{f.bytes:,} bytes" for f in (one, other)))


def _prompts(first: RunHeader, second: RunHeader) -> Iterator[Difference]:
    """Tasks of both runs with other prompts. Another `--limit` on one file is no difference: the
    samples that both have are the same.
    """
    sets = [{one.task: one for one in header.prompts} for header in (first, second)]
    for task, one in sets[0].items():
        other = sets[1].get(task)
        if other is None or one.sha256 == other.sha256:
            continue
        is_same_file = one.file_sha256 and one.file_sha256 == other.file_sha256
        if not is_same_file:
            yield Difference(f"prompts of {task}", *map(_prompt_text, (one, other)))


def method_differences(first: RunHeader, second: RunHeader) -> Iterator[Difference]:
    """Differences in the methods' own weights and effective options."""
    described = [header.methods for header in (first, second)]
    for name in described[0]:
        one, other = described[0][name], described[1].get(name)
        if other is None:
            continue
        yield from _compare({f"options of {name}": "options"}, one, other)
        files = [about.weights.files if about.weights else {} for about in (one, other)]
        for difference in _files(*files):
            yield Difference(f"{name}'s {difference.what}", difference.first, difference.second)


def _executions(first: RunHeader, second: RunHeader) -> Iterator[Difference]:
    """Methods whose steps were replayed as graphs in one run only."""
    for name, one in first.execution.items():
        other = second.execution.get(name)
        if other is not None and one.mode != other.mode:
            yield Difference(f"execution of {name}", one.mode, other.mode)


def _device(header: RunHeader) -> str:
    return header.spec.values.device.partition(":")[0]


def _gpu(header: RunHeader) -> Gpu | None:
    return header.environment.gpu(header.spec.values.device)


def _kernel_difference(first: RunHeader, second: RunHeader) -> Iterator[Difference]:
    names = _kernels(first), _kernels(second)
    if names[0] != names[1]:
        yield Difference("kernels", *names)


def _kernels(header: RunHeader) -> str:
    """The name of the kernels; headers from before there was a choice mean torch's."""
    return header.kernels.name if header.kernels else "torch"


def machine_name(header: RunHeader) -> str:
    """The GPU, or the processor with its threads, on which the run's answers were computed."""
    values = header.spec.values
    if values.urls:
        return f"the servers at {', '.join(values.urls)}"
    if gpu := _gpu(header):
        return gpu.name
    cpu = header.environment.cpu.model
    return cpu if values.backend else f"{cpu}, threads: {header.num_threads}"


def _prompt_text(about: PromptsHeader) -> str:
    return f"sha256 {about.sha256[:12]}… from {about.origin}"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)
