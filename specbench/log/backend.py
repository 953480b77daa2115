"""The parts of a run's header that its backend reports, such as kernels, servers and bandwidth."""

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
    """Seconds of warm-up; absent if nothing was left to run."""
    num_late: int = 0
    """CUDA graphs captured after the warm-up; absent if none."""


class HookTimes(Struct, frozen=True, omit_defaults=True):
    """Seconds of a method's own code while no completion is timed."""

    build_s: float = 0.0
    """Seconds to build the drafter and to load its weights."""
    remember_s: float = 0.0
    """Seconds of `remember`, after completions."""
    forget_s: float = 0.0
    """Seconds of `forget`, before each pass."""
    untimed_s: float = 0.0
    """Seconds of untimed completions: in the warm-up, and to prime samples on a GPU."""
    untimed_steps: int = 0
    """Steps of the untimed completions."""
    untimed_prefills: int = 0
    """Prefills of the untimed completions."""


class WeightsPrint(Struct, frozen=True):
    """Fingerprints of the target's weights as loaded and at the end of the run."""

    at_load: str
    """Fingerprint before the methods were built."""
    at_end: str
    """Fingerprint of the same numbers after the last completion."""
    share: float
    """Share of the weights' bytes that the fingerprints cover; below 1 if they cover a sample."""
    seconds: float
    """Seconds that both fingerprints took."""
    skipped: tuple[str, ...] = ()
    """Weights without a fingerprint, since they are not in memory."""


class RooflineHeader(Struct, frozen=True, omit_defaults=True):
    """Memory bandwidth, and the bytes that a step reads."""

    bandwidth_bytes_per_s: float
    """Measured bandwidth of the memory: the largest sample."""
    cache_bytes: int
    """Size of the last-level cache; 0 if unknown."""
    target_bytes: int
    """Bytes of weights that a target forward reads."""
    kv_bytes_per_token: int
    """Bytes of keys and values per token."""
    is_mixture_of_experts: bool
    """True for a mixture of experts: a step reads only a part of target_bytes."""
    draft_bytes: dict[str, float] = {}
    """Bytes that drafting reads per step, by method."""
    bandwidth_by_threads: dict[str, float] = {}
    """Bandwidth by number of CPU threads; absent if all methods have the same number."""
    block_bytes: int = 0
    """Bytes read to measure the bandwidth, or copied in older runs on a GPU; 0 if unknown."""
    unread_bytes: int = 0
    """Part of target_bytes: experts that a token does not choose; 0 if dense or unknown."""
    bandwidth_samples: tuple[float, ...] = ()
    """Bandwidth before and after the run; absent if measured once."""
    nominal_bytes_per_s: float = 0.0
    """Bandwidth by the memory's clock and bus width; 0 if the driver does not report them."""
    copy_bytes_per_s: float = 0.0
    """Bandwidth of a GPU's copies; 0 on a CPU, and in older runs, which only copied."""
    vanilla_ratios: tuple[float, ...] = ()
    """Time of vanilla's step / time of a plain step of one row, measured before and after the
    run.
    """


class ProductChoice(Struct, frozen=True):
    """The launch of a linear layer on a GPU, chosen for its time and its result."""

    rows: int
    """Largest number of rows for which the launch is used."""
    weight: tuple[int, int]
    """Output and input size of the weight."""
    is_gated: bool
    """True if the weight holds both the gate and the up projection."""
    launch: str
    """The chosen launch: a kernel of specbench, or torch."""
    chain_us: dict[str, float]
    """Microseconds of a chain of layers with this layer in it, by launch tried."""
    rejected: dict[str, str]
    """Launches not used, with the reason."""


class Kernels(Struct, frozen=True, omit_defaults=True):
    """The kernels that compute the layers."""

    name: Annotated[str, shown_as("kernels")]
    """Transformers, torch, triton with its version, or native code with its compiler."""
    reason: str | None
    """The reason if specbench's own kernels are not used; otherwise null."""
    products: tuple[ProductChoice, ...] = ()
    """Chosen launches of linear layers; absent if there was no choice."""


class ExecutionHeader(Struct, frozen=True, omit_defaults=True):
    """The execution of a method's steps."""

    mode: Annotated[Literal["eager", "graph"], shown_as("execution")]
    """eager: operations are launched one by one; graph: they are replayed as CUDA graphs."""
    reason: str | None
    """The reason if graphs are not used; null if they are, or if eager mode was requested."""
    is_joined: Annotated[bool, role("note")] = False
    """True if one graph computes a whole step; absent if not, as with phases, traces or checks of
    drafts.
    """
    layer_inputs: tuple[int, ...] = ()
    """Target layers whose inputs the drafter reads; absent if none."""
    weights_layout: str = ""
    """Published layout of the drafter's checkpoint; absent if there is only one."""
    weights_facts: tuple[str, ...] = ()
    """Output layer and rotary embedding of the drafter's checkpoint; absent if unknown."""
    num_positions: int = 0
    """Positions for which the drafter's checkpoint was made; absent if unknown."""
    has_guessed_layers: bool = False
    """True if a formula chose the layers, since no option and no config names them."""


class ServerHeader(Struct, frozen=True, omit_defaults=True):
    """The server of a method."""

    url: str
    """Address of the server."""
    software: str
    """Name and version of the software; `unknown` if the server does not report them."""
    model: str
    """Name of the model at the server."""
    protocol: str
    """Protocol of the requests: completions, chat, or an engine's own."""
    sends_token_ids: bool = False
    """True if the server sends token ids; if not, the text is tokenised."""
    command: tuple[str, ...] = ()
    """Command that started the server, with paths cut to names; absent for a given URL."""

    @property
    def software_phrase(self) -> str:
        """Name and version in words. llama.cpp may report only the number of its build."""
        software = self.software.removesuffix("-unknown")
        name = software.removesuffix(UNKNOWN).strip()
        return software if software == name else f"{name}, version unknown".removeprefix(", ")


class Arrangement(Struct, frozen=True, omit_defaults=True):
    """How the servers that the run started took turns, and the memory that decided it."""

    is_side_by_side: bool
    """True if all servers run at once and take turns by block; else one runs at a time, by pass."""
    needed_bytes: int = 0
    """Estimated bytes of all servers' weights, caches and processes; absent if not counted."""
    free_bytes: int = 0
    """Bytes that were free before the first start; absent if not counted."""
    gpu_share: float = 0.0
    """Share of the GPU's memory that each server got; absent without a GPU."""
    reason: str = ""
    """Why only one server runs at a time; absent if memory is the reason."""


DRAFT_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted", "num_verify_calls")
"""Counters of servers that grow only if there are drafts. An engine has some of them."""


def counted_drafts(growth: Mapping[str, float]) -> int:
    """The largest growth of a server's counters of drafts and draft tokens; 0 if it has none."""
    return int(max(growth.get(name, 0.0) for name in DRAFT_COUNTERS))


class ServerUse(Struct, frozen=True, omit_defaults=True):
    """Memory and energy of a server on this machine in a block."""

    memory_bytes: int | None = None
    """Memory of the server's processes (PSS) at the end; absent if it cannot be read."""
    gpu_memory_bytes: int | None = None
    """Memory of these processes on GPUs; absent if the driver does not list them."""
    energy_j: float | None = None
    """Joules in the block, minus those of an idle server; absent if not measured."""
    meters: tuple[str, ...] = ()
    """GPUs and processor packages whose energy was measured."""
    idle_w: float = 0.0
    """Watts of these GPUs and packages while the server was idle, which are subtracted."""
    tick_s: float = 0.0
    """Seconds between two changes of the slowest counter."""
    absent: tuple[str, ...] = ()
    """Reasons why the energy, or a part of it, is missing; absent if there are none."""


class BlockHeader(Struct, frozen=True, omit_defaults=True):
    """The requests of one method on one task at one load, measured together."""

    method: str
    """Method."""
    temperature: float
    """Sampling temperature."""
    task: str
    """Task."""
    repeat: int
    """Pass over the prompts."""
    duration_s: float
    """Seconds in which any request was under way; at a rate, all seconds until the last token."""
    num_requests: int
    """Requests of the block."""
    num_failed: int = 0
    """Requests that failed."""
    num_tokens: int = 0
    """Tokens of the answers that did not fail."""
    num_before: int = 0
    """Requests of the block that an earlier part of the run completed; absent if none."""
    num_repeats: int = 0
    """Requests that were repeated only to keep the load, without a record; absent if none."""
    client_s: float = 0.0
    """CPU seconds of the client."""
    concurrency: int = 0
    """Requests at once."""
    request_rate: float = 0.0
    """Requests per second."""
    counters: dict[str, float] = {}
    """Increase of the server's counters; absent if it has none."""
    idle_cpu_s: dict[str, float] = {}
    """CPU seconds of the other methods' servers during the block; absent if they were idle."""
    idle_gpu: dict[str, float] = {}
    """Largest share of a GPU's time that the other methods' servers used; absent if idle."""
    use: ServerUse | None = None
    """Memory and energy of the server; absent in older runs."""


class WorkerHeader(Struct, frozen=True, omit_defaults=True):
    """A process of a cluster that completed samples of the run."""

    node: str
    """First digits of Ray's id of the machine."""
    gpu_ids: tuple[str, ...]
    """Numbers of the worker's GPUs on that machine; empty for a CPU."""
    environment: Environment
    """Hardware and software of that machine."""
    preparation: Preparation | None = None
    """Times before its first sample."""
    threads: Threads | None = None
    """Its CPU threads."""
    roofline: RooflineHeader | None = None
    """Its memory traffic."""
    gpu: GpuUse | None = None
    """Its GPU during the run; absent on a CPU."""
    cpu: CpuUse | None = None
    """Its processor during the run."""
