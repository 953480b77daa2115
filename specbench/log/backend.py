"""The parts of a run's header that the backend reports, such as kernels, servers and bandwidth."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Struct

from specbench.log.machine import UNKNOWN, Environment, Threads
from specbench.log.options import role, shown_as
from specbench.log.usage import CpuUse, GpuUse


class Preparation(Struct, frozen=True, omit_defaults=True):
    """Seconds before the first sample."""

    load_s: float
    """Seconds to load the models."""
    warm_up_s: float | None = None
    """Seconds of the warm-up. Absent if no samples were left to run."""
    num_late: int = 0
    """Number of CUDA graphs captured after the warm-up. Absent if there were none."""


class HookTimes(Struct, frozen=True, omit_defaults=True):
    """Seconds that a method's code took outside the timed completions."""

    build_s: float = 0.0
    """Seconds to build the drafter and to load its weights."""
    remember_s: float = 0.0
    """Seconds of `remember`, which runs after completions."""
    forget_s: float = 0.0
    """Seconds of `forget`, which runs before each pass."""
    untimed_s: float = 0.0
    """Seconds of completions that are not samples, in the warm-up or to load GPU kernels."""
    untimed_steps: int = 0
    """Steps of the untimed completions."""
    untimed_prefills: int = 0
    """Prefills of the untimed completions."""
    num_runs: int = 1
    """Runs whose times are added up here. Absent if it is 1, as in every run that is not merged."""


class WeightsPrint(Struct, frozen=True):
    """Fingerprints of the target's weights as loaded and at the end of the run."""

    at_load: str
    """Fingerprint before the methods were built."""
    at_end: str
    """Fingerprint of the same numbers after the last completion."""
    share: float
    """Share of the weights' bytes that the fingerprints cover. It is below 1 if they cover only a
    sample.
    """
    seconds: float
    """Seconds that both fingerprints took."""
    skipped: tuple[str, ...] = ()
    """Weights that have no fingerprint because they are not in memory."""


class RooflineHeader(Struct, frozen=True, omit_defaults=True):
    """The memory bandwidth, and the bytes that a step reads."""

    bandwidth_bytes_per_s: float
    """Memory bandwidth: the largest of the measured values."""
    cache_bytes: int
    """Size of the last-level cache; 0 if unknown."""
    target_bytes: int
    """Bytes of weights that a target forward reads."""
    kv_bytes_per_token: int
    """Bytes of keys and values per token."""
    is_mixture_of_experts: bool
    """True for a mixture of experts. A step then reads only a part of target_bytes."""
    draft_bytes: dict[str, float] = {}
    """Bytes that drafting reads per step, by method."""
    bandwidth_by_threads: dict[str, float] = {}
    """Bandwidth by number of CPU threads. Absent if all methods use the same number."""
    block_bytes: int = 0
    """Bytes that were read to measure the bandwidth, or copied in older runs on a GPU. 0 if
    unknown.
    """
    unread_bytes: int = 0
    """The part of target_bytes for experts that a token does not choose. 0 if the model is dense or
    the number is unknown.
    """
    bandwidth_samples: tuple[float, ...] = ()
    """Bandwidth before and after the run. Absent if it was measured only once."""
    nominal_bytes_per_s: float = 0.0
    """Bandwidth computed from the memory's clock and bus width. 0 if the driver does not report
    them.
    """
    copy_bytes_per_s: float = 0.0
    """Bandwidth of copies on a GPU. 0 on a CPU, and in older runs, which measured only copies."""
    vanilla_ratios: tuple[float, ...] = ()
    """Time of a step of vanilla / time of a plain step of one row, measured before and after the
    run.
    """


class ProductChoice(Struct, frozen=True):
    """The launch of a linear layer on a GPU, chosen for its time and its correct result."""

    rows: int
    """Largest number of rows that the launch is used for."""
    weight: tuple[int, int]
    """Output and input size of the weight."""
    is_gated: bool
    """True if the weight holds both the gate and the up projection."""
    launch: str
    """The chosen launch, which is a kernel of specbench, or torch."""
    chain_us: dict[str, float]
    """Microseconds of a chain of layers that contains this layer, for each launch that was tried.
    """
    rejected: dict[str, str]
    """Launches that were rejected, with the reason."""


class Kernels(Struct, frozen=True, omit_defaults=True):
    """The kernels that compute the layers."""

    name: Annotated[str, shown_as("kernels")]
    """Name of the kernels: transformers, torch, triton with its version, or native code with its
    compiler.
    """
    reason: str | None
    """Reason why specbench's own kernels are not used. Null if they are used."""
    products: tuple[ProductChoice, ...] = ()
    """Chosen launches of linear layers. Absent if there was no choice."""


class ExecutionHeader(Struct, frozen=True, omit_defaults=True):
    """The execution of a method's steps."""

    mode: Annotated[Literal["eager", "graph"], shown_as("execution")]
    """eager: operations are launched one by one; graph: they are replayed as CUDA graphs."""
    reason: str | None
    """Reason why graphs are not used. Null if they are used, or if eager mode was requested."""
    is_joined: Annotated[bool, role("note")] = False
    """True if one graph computes a whole step. Absent if not, for example with --phases, --trace or
    --check-drafts.
    """
    layer_inputs: tuple[int, ...] = ()
    """Target layers whose inputs the drafter reads. Absent if empty."""
    weights_layout: str = ""
    """Published layout of the drafter's checkpoint. Absent if there is only one layout."""
    weights_facts: tuple[str, ...] = ()
    """Output layer and rotary embedding of the drafter's checkpoint; absent if unknown."""
    num_positions: int = 0
    """Number of positions that the drafter's checkpoint was made for. Absent if unknown."""
    has_guessed_layers: bool = False
    """True if a formula chose the layers because no option and no config names them."""


class ServerHeader(Struct, frozen=True, omit_defaults=True):
    """The server of a method."""

    url: str
    """Address of the server."""
    software: str
    """Name and version of the software, or `unknown` if the server does not report them."""
    model: str
    """Name of the model on the server."""
    protocol: str
    """Protocol of the requests: completions, chat, or a protocol of the engine."""
    sends_token_ids: bool = False
    """True if the server sends token ids. If not, the text is tokenised."""
    command: tuple[str, ...] = ()
    """Command that started the server, with only the last name of each path. Absent if the user
    gave the URL.
    """

    @property
    def software_phrase(self) -> str:
        """The name and version in words. llama.cpp may report only its build number."""
        software = self.software.removesuffix("-unknown")
        name = software.removesuffix(UNKNOWN).strip()
        return software if software == name else f"{name}, version unknown".removeprefix(", ")


class Arrangement(Struct, frozen=True, omit_defaults=True):
    """The arrangement of the servers that the run started, and the memory that decided it."""

    is_side_by_side: bool
    """True if all servers run at once and take turns after each block. If not, one server runs at a
    time, and they take turns after each pass.
    """
    needed_bytes: int = 0
    """Estimated bytes of the weights, caches and processes of all servers. Absent if not counted.
    """
    free_bytes: int = 0
    """Bytes that were free before the first server started. Absent if not counted."""
    gpu_share: float = 0.0
    """Share of the GPU's memory that each server got. Absent without a GPU."""
    reason: str = ""
    """Reason why only one server runs at a time. Absent if memory is the reason."""


DRAFT_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted", "num_verify_calls")
"""Counters of servers that grow only if there are drafts. Each engine has only some of them."""


def counted_drafts(growth: Mapping[str, float]) -> int:
    """The largest growth of a server's counters of drafts and draft tokens, or 0 without
    counters.
    """
    return int(max(growth.get(name, 0.0) for name in DRAFT_COUNTERS))


class ServerUse(Struct, frozen=True, omit_defaults=True):
    """The memory and energy that a server on this machine used in a block."""

    memory_bytes: int | None = None
    """Memory of the server's processes (PSS) at the end of the block. Absent if it cannot be read.
    """
    gpu_memory_bytes: int | None = None
    """Memory of these processes on GPUs. Absent if the driver does not list them."""
    energy_j: float | None = None
    """Joules used in the block, minus those of an idle server. Absent if not measured."""
    meters: tuple[str, ...] = ()
    """GPUs and processor packages whose energy was measured."""
    idle_w: float = 0.0
    """Watts of these GPUs and packages while the server was idle. Their energy is subtracted."""
    tick_s: float = 0.0
    """Seconds between two changes of the counter that changes least often."""
    absent: tuple[str, ...] = ()
    """Reasons why the energy, or a part of it, is missing. Absent if nothing is missing."""


class BlockHeader(Struct, frozen=True, omit_defaults=True):
    """The requests of one method on one task at one load, measured together."""

    method: str
    """Method with the options that were given."""
    temperature: float
    """Sampling temperature."""
    task: str
    """Name of the task."""
    repeat: int
    """Pass over the prompts."""
    duration_s: float
    """Seconds during which a request was in flight. At a request rate, the seconds from the start
    of the block to the end of its last request.
    """
    num_requests: int
    """Requests of the block."""
    num_failed: int = 0
    """Requests that failed."""
    num_tokens: int = 0
    """Tokens of the answers that did not fail."""
    num_before: int = 0
    """Requests of the block that an earlier part of the run completed. Absent if 0."""
    num_repeats: int = 0
    """Requests that were repeated only to keep up the load, and have no record. Absent if 0."""
    client_s: float = 0.0
    """CPU seconds that the client used."""
    concurrency: int = 0
    """Requests at once."""
    request_rate: float = 0.0
    """Requests per second."""
    counters: dict[str, float] = {}
    """Increase of the server's counters. Absent if the server has none."""
    idle_cpu_s: dict[str, float] = {}
    """CPU seconds that the servers of other methods used during the block. Absent if they were
    idle.
    """
    idle_gpu: dict[str, float] = {}
    """Largest share of a GPU's time that the servers of other methods used. Absent if they were
    idle.
    """
    use: ServerUse | None = None
    """Memory and energy of the server. Absent in older runs."""


class WorkerHeader(Struct, frozen=True, omit_defaults=True):
    """A process of a cluster that completed samples of the run."""

    node: str
    """The first digits of Ray's id for the machine."""
    gpu_ids: tuple[str, ...]
    """Numbers of the worker's GPUs on that machine. Empty for a CPU."""
    environment: Environment
    """Hardware and software of that machine."""
    preparation: Preparation | None = None
    """Times before the worker's first sample."""
    threads: Threads | None = None
    """CPU threads of the worker."""
    roofline: RooflineHeader | None = None
    """Memory traffic of the worker."""
    gpu: GpuUse | None = None
    """The worker's GPU during the run. Absent on a CPU."""
    cpu: CpuUse | None = None
    """The worker's processor during the run."""
