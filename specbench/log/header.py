"""The header of a run, `run.json`, as a typed value.

It also makes phrases for reports. `log.store` reads and writes the file.
"""

from typing import Annotated, Any, Literal

from msgspec import Struct, to_builtins

from specbench.errors import UserError
from specbench.log import backend
from specbench.log.imported import OUR_RULE, UNTOLD, ImportedHeader, Refused
from specbench.log.machine import Environment, Threads
from specbench.log.methods import MethodHeader, MethodLabel
from specbench.log.model import ModelHeader
from specbench.log.options import role
from specbench.log.spec import SpecHeader, SpecValues
from specbench.log.usage import CpuUse, GpuUse, MethodEnergy

SCHEMA = 1
"""Version of the run files."""
IMPORTED_SCHEMA = 2
"""Version of the files of imported runs, which older versions of specbench refuse."""

_IN_FIRST_VERSION = frozenset(
    {"id", "status", "created", "finished", "command", "spec", "environment", "warnings", "model"}
    | {"methods", "no_checkpoint", "columns", "prompts", "name", "label", "source", "dtype"}
    | {"is_stand_in", "is_embedded", "revision", "files", "tasks", "limit", "temperatures"}
    | {"max_new_tokens", "repeats", "seed", "is_baseline_run", "phases", "trace"}
)
"""Fields of the first version, which `run.json` has even if they are empty, unlike later fields."""

_ABSENT_VALUES = {"settings": "paper", "kernels": "auto", "limit_order": "first"}
"""Options of later versions -> the value that `run.json` omits although it is not empty."""

Status = Literal["running", "complete", "interrupted", "failed"]


class PromptsHeader(Struct, frozen=True, omit_defaults=True):
    """The prompts of a task."""

    task: str
    """Name of the task."""
    title: str
    """Title of the task's column in tables."""
    source: str
    """Kind of source: bundled, paper, hub or file."""
    origin: str
    """File name, URL or data set."""
    file_sha256: str | None
    """Hash of the file. Null for a data set on the Hub."""
    num_available: int
    """Number of prompts that the source has."""
    num_prompts: int
    """Number of prompts that the run has."""
    sha256: str
    """Hash of the prompts of the run."""
    categories: dict[str, tuple[str, ...]] = {}
    """Ids of the samples by category. Absent if there is only one category."""
    is_original: bool = False
    """True if the prompts are bundled and do not imitate published ones."""
    copies: dict[str, str] = {}
    """Id of a prompt -> id of an earlier prompt with the same text. Absent if empty."""

    @property
    def is_imitation(self) -> bool:
        """True for prompts that this project wrote in the style of a published set."""
        return self.source == "bundled" and not self.is_original


class Segment(Struct, frozen=True):
    """A part of a run that was resumed on another machine or with other versions."""

    num_before: int
    """Records measured before this part."""
    created: str
    """Start in UTC, ISO 8601."""
    environment: Environment
    """Hardware and software of this part."""


class Origin(Struct, frozen=True, omit_defaults=True):
    """A run that is a part of a merged run, with its machine."""

    id: str
    """Name of that run's folder."""
    created: str
    """Start of that run in UTC, ISO 8601."""
    num_records: int
    """Number of that run's records."""
    environment: Environment
    """Hardware and software of that run."""
    uid: str = ""
    """Random id of that run's measurements. Absent if it had none."""
    finished: str | None = None
    """End of that run in UTC, ISO 8601. Absent if it has none."""
    command: tuple[str, ...] = ()
    """Arguments of that run's command."""
    gpu: GpuUse | None = None
    """GPU during that run. Absent on a CPU."""
    cpu: CpuUse | None = None
    """Processor during that run. Absent if not sampled."""


class RunHeader(Struct, frozen=True, kw_only=True):
    """Everything known about a run besides its samples: the content of `run.json`."""

    schema: Annotated[int, role("note")] = SCHEMA
    """Version of the run files."""
    id: Annotated[str, role("note")]
    """Name of the run's folder."""
    uid: Annotated[str, role("note")] = ""
    """Random id of the run's measurements. Absent in older and in merged runs."""
    status: Annotated[Status, role("note")]
    """State of the run."""
    created: Annotated[str, role("note")]
    """Start in UTC, ISO 8601."""
    finished: Annotated[str | None, role("note")] = None
    """End in UTC, ISO 8601. Null while it runs."""
    command: Annotated[tuple[str, ...], role("note")] = ()
    """Arguments of the command."""
    spec: SpecHeader
    """Options of the run."""
    environment: Annotated[Environment, role("machine")]
    """Hardware and software at the start."""
    segments: Annotated[tuple[Segment, ...], role("note")] = ()
    """Parts that --force resumed on another machine or with other versions. Absent if none."""
    warnings: Annotated[tuple[str, ...], role("note")] = ()
    """Warnings about the run, as sentences."""
    model: Annotated[ModelHeader, role("work")]
    """Target model."""
    methods: Annotated[dict[str, MethodHeader], role("method")]
    """Methods, by name with the given options."""
    no_checkpoint: Annotated[tuple[str, ...], role("method")] = ()
    """Methods that were not run because the model has no checkpoint for them."""
    num_records: Annotated[int | None, role("note")] = None
    """Number of records of the whole run. Absent if unknown."""
    columns: Annotated[dict[str, str], role("work")]
    """Titles of the columns by task, in the order of the columns."""
    prompts: Annotated[tuple[PromptsHeader, ...], role("work", shown_name="prompts of {}")] = ()
    """Prompts by task."""
    preparation: Annotated[backend.Preparation | None, role("note")] = None
    """Times before the first sample."""
    roofline: Annotated[backend.RooflineHeader | None, role("note")] = None
    """Memory traffic. Absent if not measured."""
    hooks: Annotated[dict[str, backend.HookTimes], role("note")] = {}
    """Untimed work by method. Absent if empty."""
    weights_print: Annotated[backend.WeightsPrint | None, role("note")] = None
    """Fingerprints of the target's weights. Absent if unknown."""
    threads: Annotated[Threads | None, role("machine")] = None
    """CPU threads. Absent before the model is loaded."""
    kernels: Annotated[backend.Kernels | None, role("machine")] = None
    """Kernels of the layers. Absent before the model is loaded."""
    execution: Annotated[dict[str, backend.ExecutionHeader], role("machine")] = {}
    """Execution of the steps, by method."""
    gpu: Annotated[GpuUse | None, role("note")] = None
    """The GPU during the run. Absent on a CPU."""
    cpu: Annotated[CpuUse | None, role("note")] = None
    """The processor during the run. Absent if not sampled."""
    energy: Annotated[tuple[MethodEnergy, ...], role("note")] = ()
    """Energy of each method while it ran alone. Absent without --energy."""
    servers: Annotated[dict[str, backend.ServerHeader], role("machine")] = {}
    """Servers by method. Absent without --backend server."""
    arrangement: Annotated[backend.Arrangement | None, role("note")] = None
    """Arrangement of the started servers. Absent for a single server, and if the user gave URLs."""
    blocks: Annotated[tuple[backend.BlockHeader, ...], role("note")] = ()
    """Blocks of requests, in order. Absent without a server."""
    origins: Annotated[tuple[Origin, ...], role("note")] = ()
    """Runs that this run was merged from. Absent if it was not merged."""
    workers: Annotated[dict[str, backend.WorkerHeader], role("note")] = {}
    """Workers by name. Absent without --ray."""
    imported: Annotated[ImportedHeader | None, role("note")] = None
    """The other tool and its files. Absent in runs that specbench measured."""

    def method(self, spelling: str) -> MethodLabel:
        """The names of a method in tables. The title of a method without a header is its name."""
        name = spelling.partition(":")[0]
        header = self.methods.get(spelling) or self.methods.get(name)
        if header is None:
            return MethodLabel(spelling, name)
        variants = [variant for variant in self.methods if variant.partition(":")[0] == name]
        return MethodLabel(
            spelling,
            header.title,
            header.is_lossless,
            threads=self.threads.own.get(spelling, 0) if self.threads else 0,
            others=tuple(variant for variant in variants if variant != spelling),
            settings=header.settings_text,
        )

    def task_title(self, task: str) -> str:
        """The title of a task's column, "MT-bench-like" for prompts in the style of MT-bench."""
        title = self.columns.get(task, task)
        is_imitation = any(prompts.is_imitation for prompts in self.prompts if prompts.task == task)
        return f"{title}-like" if is_imitation else title

    @property
    def method_labels(self) -> tuple[MethodLabel, ...]:
        """The methods in the order of the command line, then those without a checkpoint."""
        spellings = [*self.spec.values.methods, *self.methods, *self.no_checkpoint]
        return tuple(map(self.method, dict.fromkeys(spellings)))

    @property
    def copied_prompts(self) -> dict[str, str]:
        """Id of a prompt that copies an earlier prompt of its task -> the earlier prompt's id."""
        return {
            copy: original for prompts in self.prompts for copy, original in prompts.copies.items()
        }

    @property
    def device_phrase(self) -> str:
        """The hardware on which the run was measured, in words, for the titles of tables.

        For a merged run, it is the hardware of each run in it (`origins`). `cpu_threads` is None on
        a GPU or for a server. `workers` are the processes of a cluster.
        """
        if self.imported:
            return "unknown hardware"
        spec_values = self.spec.values
        environments = [origin.environment for origin in self.origins] or [self.environment]
        phrases = [
            environment.device_phrase(spec_values.device, self.cpu_threads)
            for environment in environments
        ]
        phrase = "; ".join(dict.fromkeys(phrases))  # without duplicates
        # The user gave the addresses of running servers, which may be on other machines.
        if spec_values.urls:
            phrase = f"hardware unknown to the client, client on {phrase}"
        if self.workers:
            num_workers = len(self.workers)
            phrase = f"{num_workers} {'workers' if num_workers > 1 else 'worker'} on {phrase}"
        return phrase

    @property
    def hardware_name(self) -> str:
        """The GPU or the processor on which the answers were computed."""
        if self.imported:
            return "unknown hardware"
        spec_values = self.spec.values
        if spec_values.urls:
            return f"the servers at {', '.join(spec_values.urls)}"
        gpu = self.environment.gpu(spec_values.device)
        return gpu.name if gpu else self.environment.cpu.model

    @property
    def machine_name(self) -> str:
        """The hardware, with the number of threads if this process computed on a CPU."""
        threads = f", threads: {self.cpu_threads}" if self.cpu_threads else ""
        return self.hardware_name + threads

    @property
    def cpu_threads(self) -> int | None:
        """CPU threads of one operation, or None on a GPU, for servers, and if unknown."""
        spec_values = self.spec.values
        is_on_server = spec_values.backend or spec_values.urls
        is_elsewhere = self.imported or is_on_server or self.environment.gpu(spec_values.device)
        return None if is_elsewhere else self.num_threads

    @property
    def counting_rule(self) -> str:
        """The rule by which tokens and steps are counted, in words."""
        return self.imported.counting_text if self.imported else OUR_RULE

    @property
    def untold_patterns(self) -> list[str]:
        """Patterns for the paths of header fields that are unknown in an imported run."""
        if self.imported is None:
            return []
        options = [name for name in SpecValues.__struct_fields__ if not self.imported.tells(name)]
        model = [] if self.imported.tells("model") else ["model.name"]
        return [*UNTOLD, *model, *(f"spec.{option}" for option in options)]

    def refuse_import(self, refused: Refused) -> None:
        """Raise UserError if the run is imported. `refused` names the action, such as "merged"."""
        if self.imported:
            raise UserError(
                f"{self.id} is an imported run ({self.imported.tools}): it cannot be {refused}.",
                "Give a measured run. report, compare, check and site also take imported runs.",
            )

    @property
    def uids(self) -> set[str]:
        """The random ids of all measurements of the run. Runs of older versions have none."""
        return {self.uid, *(origin.uid for origin in self.origins)} - {""}

    @property
    def num_threads(self) -> int:
        """CPU threads of one operation."""
        return self.threads.num if self.threads else self.environment.torch.num_threads


def header_values(header: RunHeader) -> dict[str, Any]:
    """The fields of a header for `run.json` as JSON values, without later fields that are empty."""
    header_fields: dict[str, Any] = to_builtins(header)
    spec = header_fields["spec"]
    for fields in (header_fields, header_fields["model"], spec["values"], spec["asked"] or {}):
        for name in fields.keys() - _IN_FIRST_VERSION:
            if not fields[name] or fields[name] == _ABSENT_VALUES.get(name):
                del fields[name]
    return header_fields
