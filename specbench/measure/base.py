"""The protocols between a run and the backend that completes its requests.

The runner, the log and the reports use only these protocols: no device or weights appear here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from specbench.data.prompts import Prompt, PromptSet
from specbench.log.backend import (
    Arrangement,
    BlockHeader,
    ExecutionHeader,
    HookTimes,
    Kernels,
    Preparation,
    RooflineHeader,
    ServerHeader,
    WeightsPrint,
    WorkerHeader,
)
from specbench.log.header import RunHeader
from specbench.log.machine import Environment, Threads
from specbench.log.methods import MethodHeader
from specbench.log.model import ModelHeader
from specbench.log.options import role
from specbench.log.run import NO_LOAD, Load, loads_of
from specbench.log.spec import SpecValues
from specbench.log.usage import GpuUse, MethodEnergy
from specbench.measure.progress import Progress as Progress
from specbench.measure.spec import RunSpec
from specbench.models.chat import ChatCodec
from specbench.types import Completion, Record, RecordKey, Request, RequestKey

outer_clock = time.perf_counter
"""The run's clock, bound before methods are imported, which could replace `perf_counter`."""


class SetupInfo(Struct, frozen=True):
    """A setup's part of the header."""

    model: Annotated[ModelHeader, role("work", "target model")]
    methods: Annotated[dict[str, MethodHeader], role("method", "methods")]
    values: Mapping[str, Any] = {}
    """The values of the spec that the setup decides."""
    warnings: tuple[str, ...] = ()
    environment: Annotated[Environment | None, role("machine", "hardware and software")] = None
    """The machines that complete the requests; None for this machine."""


@dataclass(slots=True)
class BackendInfo:
    """A backend's part of the header. Values that were not measured are None or empty."""

    preparation: Preparation | None = None
    hooks: dict[str, HookTimes] = field(default_factory=dict)
    weights_print: WeightsPrint | None = None
    threads: Threads | None = None
    methods: dict[str, MethodHeader] = field(default_factory=dict)
    """Headers, by label, of methods with settings from the warm-up, a tune, a file or a run."""
    roofline: RooflineHeader | None = None
    kernels: Kernels | None = None
    execution: dict[str, ExecutionHeader] = field(default_factory=dict)
    gpu: GpuUse | None = None
    energy: tuple[MethodEnergy, ...] = ()
    servers: dict[str, ServerHeader] = field(default_factory=dict)
    arrangement: Arrangement | None = None
    blocks: tuple[BlockHeader, ...] = ()
    workers: dict[str, WorkerHeader] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def added_to(self, header: RunHeader) -> RunHeader:
        """The header with this part added. A method that was eager stays eager in a resumed run."""
        execution = header.execution | self.execution
        for label, earlier_execution in header.execution.items():
            if execution[label].mode == "graph":
                execution[label] = earlier_execution
        return replace(
            header,
            preparation=self.preparation,
            hooks=header.hooks | self.hooks,
            weights_print=self.weights_print or header.weights_print,
            threads=self.threads or header.threads,
            methods=header.methods | self.methods,
            roofline=self.roofline,
            kernels=self.kernels,
            execution=execution,
            gpu=self.gpu,
            energy=self.energy or header.energy,
            servers=header.servers | self.servers,
            arrangement=self.arrangement or header.arrangement,
            blocks=(*header.blocks, *self.blocks),
            workers=header.workers | self.workers,
            warnings=tuple(dict.fromkeys((*header.warnings, *self.warnings))),
        )


class Sink(Protocol):
    """Receives records one by one."""

    def append(self, record: Record) -> None: ...


class Log(Sink, Protocol):
    """The folder of a run, where its runner stores records."""

    def changed(self) -> None:
        """Write the header again after the backend's description has changed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt with all its turns, for all methods, at one temperature and load in one pass."""

    task: str
    prompt: Prompt
    temperature: float
    repeat: int
    """The pass, counted from 0."""
    load: Load = NO_LOAD
    num_before: int = 0
    """The number of turns that earlier samples at this temperature and load have."""

    def key(self, turn: int) -> RequestKey:
        """The key of one turn's request."""
        prompt_id = self.prompt.sample_id
        return RequestKey(self.temperature, self.task, prompt_id, turn, self.repeat, *self.load)

    def keys(self, method: str) -> Iterator[RecordKey]:
        """The keys of a method's records, turn by turn."""
        return (RecordKey(method, *self.key(turn)) for turn in range(len(self.prompt.turns)))


@dataclass(frozen=True, slots=True)
class Work:
    """Values that all samples of a run share."""

    spec: RunSpec
    labels: tuple[str, ...]
    """The methods as records spell them, in table order."""
    codec: ChatCodec
    max_new_tokens: int
    """The most new tokens that an answer may have."""


@dataclass(frozen=True)
class Plan:
    """A run that can start: the backend to open, and the prompts to complete."""

    spec: RunSpec
    setup: Setup
    prompt_sets: tuple[PromptSet, ...]
    max_new_tokens: int

    @cached_property
    def about(self) -> SetupInfo:
        """The setup's part of the header. It is computed only once, because it hashes files."""
        return self.setup.describe()

    @cached_property
    def work(self) -> Work:
        """Values that all samples of the run share."""
        return Work(self.spec, self.setup.labels, self.setup.codec, self.max_new_tokens)

    @property
    def repeats(self) -> int:
        """The number of passes over all prompts."""
        return self.spec.repeats or 1

    @property
    def prompts(self) -> Mapping[str, Sequence[Prompt]]:
        """The prompts of each task by its name, in column order."""
        return {prompt_set.task.name: prompt_set.prompts for prompt_set in self.prompt_sets}

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of the run in order. Each of `repeats` passes goes through all tasks.

        A load is the number of requests that a server gets at once or per second. The engine in
        this process has a single, empty load. The runner draws the order of the methods from a
        sample's `num_before`, the number of turns of earlier samples at its temperature and load.
        """
        num_turns = Counter[tuple[float, Load]]()  # turns so far, by (temperature, load)
        temperatures = self.spec.temperatures
        loads = loads_of_run(self.spec)
        samples = []
        for pass_number, (task, prompts) in product(range(self.repeats), self.prompts.items()):
            for prompt, temperature, load in product(prompts, temperatures, loads):
                num_before = num_turns[temperature, load]
                samples.append(Sample(task, prompt, temperature, pass_number, load, num_before))
                num_turns[temperature, load] += len(prompt.turns)
        return tuple(samples)

    @cached_property
    def num_records(self) -> int:
        """The number of records of the whole run."""
        return sum(len(sample.prompt.turns) for sample in self.samples) * len(self.setup.labels)

    @property
    def keys(self) -> Iterator[RecordKey]:
        """The keys of all records."""
        for sample in self.samples:
            for label in self.setup.labels:
                yield from sample.keys(label)


def loads_of_run(values: SpecValues) -> tuple[Load, ...]:
    """The loads of a run, in order. Without a load, a server gets one request at a time."""
    default = Load(concurrency=1) if values.backend == "server" else NO_LOAD
    return loads_of(values) or (default,)


class PlanRunner(Protocol):
    """Completes a plan's samples, except those that are done."""

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all samples, and yield each new record after it is stored."""


class Backend(Protocol):
    """Completes a plan. As a context manager, it holds a model or servers while it is open."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        """The backend's part of the header so far. `records` are those of the run so far."""

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Do the work that only first requests need, such as loading kernels.

        `requests` has two requests per temperature of the run: first a usual request, then one
        whose prompt and answer together have the most tokens that the run can reach.
        """

    def runner(self, plan: Plan, log: Log, progress: Progress) -> PlanRunner:
        """The runner of a plan on this backend. It completes single requests or blocks of them.

        `log` receives the records. Its `changed` is called only between requests.
        """


class RequestBackend(Backend, Protocol):
    """A backend that completes requests one after the other."""

    def complete(self, method: str, request: Request) -> Completion:
        """Complete a request with a method. `method` is its name in records."""

    def remember(self, method: str) -> None:
        """Let a method of scope "run" remember its last completion."""

    def forget(self) -> None:
        """Make methods drop what they remember. If one fails here, its later requests fail."""


@runtime_checkable
class ChecksMemory(Protocol):
    """A setup that can check whether requests fit into its device's memory."""

    def check_memory(self, num_tokens: int) -> None:
        """Refuse requests that grow to `num_tokens` if there is no room for them."""


class Setup(Protocol):
    """Everything that a backend needs, found and checked, so that the backend can be opened."""

    @property
    def title(self) -> str:
        """The model and where it runs, in words."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods as records spell them, in table order."""

    @property
    def no_checkpoint(self) -> tuple[str, ...]:
        """Requested methods that cannot run, because they have no checkpoint."""

    @property
    def codec(self) -> ChatCodec: ...

    @property
    def context(self) -> int | None:
        """Length of the model's context in tokens; None if unknown."""

    def describe(self) -> SetupInfo: ...
    def open(self, folder: Path, before: RunHeader | None = None) -> Backend:
        """The backend, to be entered. `before` is the header of a continued run in `folder`."""
