"""A run's header (`run.json`) as a value, read once and leniently.

Knows the header's keys. Refuses to fail on a missing or odd one: what a header does not say is
"unknown", since a report of an old or damaged run is better than none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """What a table says of a method. `spelling` is its key in the records: "pld:ngram=2"."""

    spelling: str
    title: str
    is_lossless: bool = True

    @property
    def label(self) -> str:
        """The title, with the options that were given, and a star when the output may differ."""
        _, _, options = self.spelling.partition(":")
        label = f"{self.title} ({options.replace(',', ', ')})" if options else self.title
        return label if self.is_lossless else f"{label}*"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the run was measured; every field is a phrase to print."""

    device: str
    software: str
    commit: str


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The header's facts that analysis and reports use.

    `columns` maps a task to its title. `gpu` is what the driver told of the card during the run
    (`bench.gpu_sampler` says what), empty on a CPU. `execution` tells of each method how its steps
    were run, `kernels` by what their layers were computed.
    """

    id: str
    status: str
    created: str
    model: str
    model_label: str
    is_stand_in: bool
    dtype: str
    spec: Mapping[str, Any]
    methods: tuple[MethodInfo, ...]
    columns: Mapping[str, str]
    no_checkpoint: frozenset[str]
    machine: Machine
    warnings: tuple[str, ...]
    gpu: Mapping[str, Any] = field(default_factory=dict)
    execution: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Any] = field(default_factory=dict)

    def method(self, spelling: str) -> MethodInfo:
        """What the header says of a method; its spelling is the title where it says nothing."""
        for info in self.methods:
            if info.spelling == spelling:
                return info
        return MethodInfo(spelling, spelling.partition(":")[0])


def read_header(header: Mapping[str, Any]) -> RunInfo:
    """The header as a value. Every key may be missing."""
    spec = _mapping(_mapping(header.get("spec")).get("values"))
    model = _mapping(header.get("model"))
    name = _text(model.get("name", spec.get("model")))
    no_checkpoint = frozenset(_texts(header.get("no_checkpoint")))
    return RunInfo(
        id=_text(header.get("id")),
        status=_text(header.get("status")),
        created=_text(header.get("created")),
        model=name,
        model_label=_text(model.get("label", name)),
        is_stand_in=bool(model.get("is_stand_in")),
        dtype=_text(model.get("dtype", spec.get("dtype"))),
        spec=spec,
        methods=_methods(header, spec, no_checkpoint),
        columns={key: _text(title) for key, title in _mapping(header.get("columns")).items()},
        no_checkpoint=no_checkpoint,
        machine=_machine(_mapping(header.get("environment")), _text(spec.get("device"))),
        warnings=tuple(_texts(header.get("warnings"))),
        gpu=_mapping(header.get("gpu")),
        execution=_mapping(header.get("execution")),
        kernels=_mapping(header.get("kernels")),
    )


def _methods(
    header: Mapping[str, Any], spec: Mapping[str, Any], no_checkpoint: Iterable[str]
) -> tuple[MethodInfo, ...]:
    """The methods asked for, in the order asked, then what only the header's table knows."""
    described = _mapping(header.get("methods"))
    spellings = [*_texts(spec.get("methods")), *described, *no_checkpoint]
    infos = []
    for spelling in dict.fromkeys(spellings):
        name = spelling.partition(":")[0]
        about = _mapping(described.get(spelling, described.get(name)))
        title = _text(about.get("title", name))
        infos.append(MethodInfo(spelling, title, about.get("is_lossless") is not False))
    return tuple(infos)


def _machine(environment: Mapping[str, Any], device: str) -> Machine:
    cpu, torch = _mapping(environment.get("cpu")), _mapping(environment.get("torch"))
    gpu = gpu_in_use(environment, device)
    if gpu:
        phrase = f"{_text(gpu.get('name'))}{_memory(gpu)}, driver {_text(gpu.get('driver'))}"
    elif environment:
        cores, threads = _text(cpu.get("num_cores")), _text(torch.get("num_threads"))
        unit = "thread" if threads == "1" else "threads"
        phrase = f"{_text(cpu.get('model'))}, {cores} cores{_memory(cpu)}, {threads} {unit}"
    else:
        phrase = UNKNOWN
    versions = [
        f"specbench {_text(environment.get('specbench'))}",
        f"torch {_text(torch.get('version'))}",
        f"transformers {_text(environment.get('transformers'))}",
        f"Python {_text(environment.get('python'))}",
    ]
    git = _mapping(environment.get("git"))
    commit = _text(git.get("commit"))[:12]
    return Machine(phrase, ", ".join(versions), commit + ("+dirty" if git.get("is_dirty") else ""))


def gpu_in_use(environment: Mapping[str, Any], device: str) -> Mapping[str, Any]:
    """What the header says of the GPU of "cuda" or "cuda:1"; nothing for a CPU. Torch's order and
    the driver's differ: the name links them.
    """
    if device == "cpu":
        return {}
    used = _texts(_mapping(environment.get("torch")).get("devices"))
    listed = environment.get("gpus")
    gpus = [_mapping(gpu) for gpu in listed] if isinstance(listed, list | tuple) else []
    number = device.partition(":")[2]
    index = int(number) if number.isdigit() else 0
    if index >= len(used):
        return gpus[0] if gpus else {}
    return next((gpu for gpu in gpus if gpu.get("name") == used[index]), {"name": used[index]})


def _memory(holder: Mapping[str, Any]) -> str:
    size = holder.get("memory_bytes")
    return f", {size / 2**30:.0f} GiB" if isinstance(size, int | float) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def _text(value: Any) -> str:
    return UNKNOWN if value is None else str(value)
