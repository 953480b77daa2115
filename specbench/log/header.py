"""The header of a run, `run.json`, as one typed value.

Names and phrases that every report needs are derived here. `log.store` reads and writes the file.
"""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Struct, to_builtins

from specbench.log import backend
from specbench.log.machine import CpuUse, Environment, GpuUse, Origin, Threads
from specbench.log.options import role, told
from specbench.log.spec import SpecHeader
from specbench.types import Scope, Shape

SCHEMA = 1
"""Version of the run files."""

_FIRST = frozenset(
    {"id", "status", "created", "finished", "command", "spec", "environment", "warnings", "model"}
    | {"methods", "no_checkpoint", "columns", "prompts", "name", "label", "source", "dtype"}
    | {"is_stand_in", "is_embedded", "revision", "files", "tasks", "limit", "temperatures"}
    | {"max_new_tokens", "repeats", "seed", "is_baseline_run", "phases", "trace"}
)
"""Parts of the first version, in `run.json` even if empty; later ones are absent then."""

_USUAL = {"settings": "paper", "kernels": "auto"}
"""Later options that are absent with these values, too."""

_DEQUANTISED = "dequantised "
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""The id of a repository on the Hub: "org/name"."""
Status = Literal["running", "complete", "interrupted", "failed"]


def precision(quantization: str, dtype: str) -> str:
    """The formats of a model's numbers in words: "Q4_1 → bfloat16" for dequantised weights."""
    if quantization.startswith(_DEQUANTISED):
        return f"{quantization.removeprefix(_DEQUANTISED)} → {dtype}"
    return f"{quantization} weights, {dtype}" if quantization else dtype


class FileHeader(Struct, frozen=True):
    """A file of a checkpoint."""

    bytes: int
    """Size of the file."""
    sha256: str | None
    """Hash; null for a large file of an older version."""


class WeightsHeader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint. For a stand-in, the files of the small model inside it."""

    is_stand_in: bool = False
    """Weights of a stand-in."""
    num_numbers: int | None = None
    """Number of values in a stand-in's tensors."""
    seed: int | None = None
    """Seed of a stand-in's noise."""
    revision: str | None
    """Commit on the Hub; null for a local folder."""
    files: Annotated[dict[str, FileHeader], told("file {}")]
    """Files by name."""


class ModelHeader(Struct, frozen=True, kw_only=True):
    """The target model."""

    name: Annotated[str, told("model")]
    """Name on the model card, or folder."""
    label: str
    """Name in tables."""
    source: str
    """Hub id or folder of the weights, or `embedded`."""
    dtype: Annotated[str, told("dtype")]
    """Number format of the weights."""
    quantization: Annotated[str, told("quantised weights")] = ""
    """The checkpoint's own format, such as awq int4 or dequantised fp8; absent without."""
    is_stand_in: Annotated[bool, told("stand-in instead of the real weights")] = False
    """A small model in the real model's shape."""
    is_embedded: bool = False
    """Weights ship with specbench."""
    shape: Shape | None = None
    """Shape of a stand-in; absent for other models."""
    revision: Annotated[str | None, told("model revision")] = None
    """Commit on the Hub; null for a local folder."""
    files: Annotated[dict[str, FileHeader], told("file {}")] = {}
    """Files of the checkpoint by name."""
    template_sha256: Annotated[str | None, told("text of the chat template")] = None
    """Hash of the chat template; absent without one."""

    @property
    def precision(self) -> str:
        """The formats of its numbers in words."""
        return precision(self.quantization, self.dtype)

    def rounding(self, dtype: str) -> str:
        """The number format that a model in `dtype` rounds to, for the audit.

        Libraries of stored formats compute in half precision, or with inputs of 8 bits,
        whatever the dtype is. torchao's int8 and int4, and dequantised weights, compute in the
        dtype.
        """
        in_dtype = self.quantization in ("", "int8", "int4")
        return dtype if in_dtype or self.quantization.startswith(_DEQUANTISED) else "bfloat16"


class SettingsHeader(Struct, frozen=True, omit_defaults=True):
    """The source of a method's options that are not its paper's."""

    source: str
    """tuned: by `specbench tune`; auto: fastest here; cut: the paper's, with the rows that are
    cheap; a file; a run.
    """
    paper: dict[str, Any] = {}
    """The paper's values of options that differ."""
    sha256: str = ""
    """Hash of the file; absent if the settings were chosen here."""


_UNITS = {"total_tokens": "nodes", "nodes": "nodes", "num_tokens": "tokens"}
"""Options that say how large a draft is, the first one for labels, with their units."""


class MethodHeader(Struct, frozen=True, omit_defaults=True):
    """A method of the run."""

    name: str
    """Registered name."""
    title: str
    """Name in tables."""
    options: Annotated[dict[str, Any], told("options")]
    """Options in effect."""
    is_lossless: bool
    """Output distribution is the target's."""
    weights: WeightsHeader | None
    """Drafter's checkpoint; null if none is used."""
    scope: Scope = "request"
    """run: it remembers earlier prompts of a repeat; absent: only the prompt."""
    settings: Annotated[SettingsHeader | None, role("note")] = None
    """Source of the options; absent for the paper's and the user's."""

    @property
    def settings_text(self) -> str:
        """The size of its drafts in words, if it is not the paper's: "12 nodes; paper: 60"."""
        if not self.settings or not (paper := self.settings.paper):
            return ""
        name = next((one for one in _UNITS if one in paper), next(iter(paper)))
        own, theirs = f"{name}={self.options[name]}", paper[name]
        if name in _UNITS:
            number = self.options[name]
            own = f"{number} {_UNITS[name].removesuffix('s' * (number == 1))}"
            theirs = theirs or "all"
        return f"{own}{', cut' * (self.settings.source == 'cut')}; paper: {theirs}"


class PromptsHeader(Struct, frozen=True, omit_defaults=True):
    """The prompts of a task."""

    task: str
    """Name of the task."""
    title: str
    """Column in tables."""
    source: str
    """Bundled, paper, hub or file."""
    origin: str
    """File name, URL or data set."""
    file_sha256: str | None
    """Hash of the file; null for the Hub."""
    num_available: int
    """Prompts of the source."""
    num_prompts: int
    """Prompts of the run."""
    sha256: str
    """Hash of the prompts of the run."""
    categories: dict[str, tuple[str, ...]] = {}
    """Ids of the samples by category; absent if there is one."""
    is_original: bool = False
    """Bundled prompts that stand in for no published ones."""

    @property
    def is_imitation(self) -> bool:
        """True for prompts that this project wrote in the style of published ones."""
        return self.source == "bundled" and not self.is_original


class MethodLabel(NamedTuple):
    """The names of a method in tables. `spelling` is its key in records: "pld:ngram=2".

    `threads` are its CPU threads if vanilla has another number; else 0. `others` are the
    spellings of the run's other variants of the method. `settings` is the size of its drafts in
    words, if that is not its paper's.
    """

    spelling: str
    title: str
    is_lossless: bool = True
    threads: int = 0
    others: tuple[str, ...] = ()
    settings: str = ""

    @property
    def label(self) -> str:
        """The title with the options that were given, settings that were chosen and threads of
        its own, and a star if the output may differ. Options that all variants share are left
        out, and folders of the machine before the part that tells a path from the others'.
        """
        others = [_given(other) for other in self.others]
        own = _given(self.spelling)
        found = [one for one in own if not others or any(one not in each for each in others)]
        details = [_without_folders(one, [*chain(*others)]) for one in found]
        details += [self.settings] if self.settings else []
        if self.threads:
            details.append(f"{self.threads} thread{'s' * (self.threads != 1)}")
        label = f"{self.title} ({', '.join(details)})" if details else self.title
        return label if self.is_lossless else f"{label}*"


def _given(spelling: str) -> list[str]:
    """The options of a spelling: "ngram=2"."""
    return spelling.partition(":")[2].split(",") if ":" in spelling else []


def _without_folders(option: str, others: Sequence[str]) -> str:
    """The option with only the last parts of a path, as many as no other option ends with."""
    name, _, value = option.partition("=")
    if "/" not in value or HUB_ID.fullmatch(value):
        return option
    parts = Path(value).parts
    ends = ("/".join(parts[-n:]) for n in range(1, len(parts)))
    rivals = [other for other in others if other != option]
    short = next((end for end in ends if not any(o.endswith(end) for o in rivals)), value)
    return f"{name}={short}"


class Segment(Struct, frozen=True):
    """A part of a run that was resumed on another machine or with other versions."""

    num_before: int
    """Records measured before."""
    created: str
    """Start in UTC, ISO 8601."""
    environment: Environment
    """Hardware and software from then on."""


class RunHeader(Struct, frozen=True, kw_only=True):
    """Everything known about a run besides its samples: the content of `run.json`."""

    schema: Annotated[int, role("note")] = SCHEMA
    """Version of the run files."""
    id: Annotated[str, role("note")]
    """Name of the run's folder."""
    uid: Annotated[str, role("note")] = ""
    """Random name of its measurements; absent in older and in merged runs."""
    status: Annotated[Status, role("note")]
    """State of the run."""
    created: Annotated[str, role("note")]
    """Start in UTC, ISO 8601."""
    finished: Annotated[str | None, role("note")] = None
    """End in UTC, ISO 8601; null while it runs."""
    command: Annotated[tuple[str, ...], role("note")] = ()
    """Arguments of the command."""
    spec: SpecHeader
    """Values of the run."""
    environment: Annotated[Environment, role("machine")]
    """Hardware and software at the start."""
    segments: Annotated[tuple[Segment, ...], role("note")] = ()
    """Resumptions by --force on another machine; absent if none."""
    warnings: Annotated[tuple[str, ...], role("note")] = ()
    """Warnings about the run, as sentences."""
    model: Annotated[ModelHeader, role("work")]
    """Target model."""
    methods: Annotated[dict[str, MethodHeader], role("method")]
    """Methods by spelling."""
    no_checkpoint: Annotated[tuple[str, ...], role("method")] = ()
    """Methods not run, because the model has no checkpoint for them."""
    num_records: Annotated[int | None, role("note")] = None
    """Records of the whole run; absent if unknown."""
    columns: Annotated[dict[str, str], role("work")]
    """Task to column title, in column order."""
    prompts: Annotated[tuple[PromptsHeader, ...], role("work", told="prompts of {}")] = ()
    """Prompts by task."""
    preparation: Annotated[backend.Preparation | None, role("note")] = None
    """Times before the first sample."""
    roofline: Annotated[backend.RooflineHeader | None, role("note")] = None
    """Memory traffic; absent if not measured."""
    hooks: Annotated[dict[str, backend.HookTimes], role("note")] = {}
    """Untimed work of methods by spelling; absent if none."""
    weights_print: Annotated[backend.WeightsPrint | None, role("note")] = None
    """Fingerprints of the target's weights; absent if none."""
    threads: Annotated[Threads | None, role("machine")] = None
    """CPU threads; absent before loading."""
    kernels: Annotated[backend.Kernels | None, role("machine")] = None
    """Kernels of the layers; absent before loading."""
    execution: Annotated[dict[str, backend.ExecutionHeader], role("machine")] = {}
    """Execution by method."""
    gpu: Annotated[GpuUse | None, role("note")] = None
    """The GPU during the run; absent on a CPU."""
    cpu: Annotated[CpuUse | None, role("note")] = None
    """The processor during the run; absent if not sampled."""
    servers: Annotated[dict[str, backend.ServerHeader], role("machine")] = {}
    """Servers by method; absent without --backend server."""
    blocks: Annotated[tuple[backend.BlockHeader, ...], role("note")] = ()
    """Blocks of requests in order; absent without a server."""
    origins: Annotated[tuple[Origin, ...], role("note")] = ()
    """Runs that this one was merged from; absent if it was not."""
    workers: Annotated[dict[str, backend.WorkerHeader], role("note")] = {}
    """Workers by name; absent without --ray."""

    def method(self, spelling: str) -> MethodLabel:
        """The names of a method; one that the header does not list goes by its own name."""
        name = spelling.partition(":")[0]
        about = self.methods.get(spelling) or self.methods.get(name)
        if about is None:
            return MethodLabel(spelling, name)
        threads = self.threads.own.get(spelling, 0) if self.threads else 0
        variants = (one for one in self.methods if one.partition(":")[0] == name)
        others = tuple(one for one in variants if one != spelling)
        text = about.settings_text
        return MethodLabel(spelling, about.title, about.is_lossless, threads, others, text)

    def task_title(self, task: str) -> str:
        """The column of a task: "MT-bench-like" over prompts written in its style."""
        title = self.columns.get(task, task)
        is_imitation = any(one.is_imitation for one in self.prompts if one.task == task)
        return f"{title}-like" if is_imitation else title

    @property
    def method_labels(self) -> tuple[MethodLabel, ...]:
        """The methods in the order of the command line, then those without a checkpoint."""
        spellings = [*self.spec.values.methods, *self.methods, *self.no_checkpoint]
        return tuple(map(self.method, dict.fromkeys(spellings)))

    @property
    def device_phrase(self) -> str:
        """The hardware of all parts of the run, in words."""
        values, threads = self.spec.values, self.cpu_threads
        every = [one.environment for one in self.origins] or [self.environment]
        phrases = dict.fromkeys(one.device_phrase(values.device, threads) for one in every)
        device = "; ".join(phrases)
        if values.urls:
            device = f"hardware unknown to the client, client on {device}"
        if self.workers:
            device = f"{len(self.workers)} worker{'s' * (len(self.workers) > 1)} on {device}"
        return device

    @property
    def hardware_name(self) -> str:
        """The GPU or the processor on which the answers were computed."""
        values = self.spec.values
        if values.urls:
            return f"the servers at {', '.join(values.urls)}"
        gpu = self.environment.gpu(values.device)
        return gpu.name if gpu else self.environment.cpu.model

    @property
    def machine_name(self) -> str:
        """The hardware, with the threads of a processor that this process used."""
        threads = f", threads: {self.cpu_threads}" if self.cpu_threads else ""
        return self.hardware_name + threads

    @property
    def cpu_threads(self) -> int | None:
        """CPU threads of one operation; None on a GPU and for servers, which have their own."""
        values = self.spec.values
        is_elsewhere = values.backend or values.urls or self.environment.gpu(values.device)
        return None if is_elsewhere else self.num_threads

    @property
    def uids(self) -> set[str]:
        """The random names of all its measurements; older versions gave none."""
        return {self.uid, *(one.uid for one in self.origins)} - {""}

    @property
    def num_threads(self) -> int:
        """CPU threads of one operation."""
        return self.threads.num if self.threads else self.environment.torch.num_threads


def header_values(header: RunHeader) -> dict[str, Any]:
    """The header as plain values, as `run.json` holds it."""
    values: dict[str, Any] = to_builtins(header)
    spec = values["spec"]
    for part in (values, values["model"], spec["values"], spec["asked"] or {}):
        for name in part.keys() - _FIRST:
            if not part[name] or part[name] == _USUAL.get(name):
                del part[name]
    return values
