"""The machine and software of a run, as typed parts of `run.json`.

This module has only the types. `machine.environment` and `machine.gpu_sampler` measure the values.
"""

import re
from typing import Annotated, Literal

from msgspec import Struct

from specbench.log.options import shown_as

UNKNOWN = "unknown"
_CUDA_DEVICE = re.compile(r"cuda(?::|:(\d+)(?:-(\d+))?)?")
"""The name of one or several GPUs: "cuda", "cuda:1" or "cuda:0-3"."""


def gpu_numbers(device: str) -> range:
    """The numbers of the GPUs that a device names: 0 for "cuda", 1 for "cuda:1", 0 to 3 for
    "cuda:0-3".

    The range is empty for a CPU, or if the text after "cuda:" is neither a number nor a range.
    """
    device_match = _CUDA_DEVICE.fullmatch(device)
    if device_match is None:
        return range(0)
    lowest = int(device_match[1] or 0)
    highest = int(device_match[2] or lowest)
    return range(lowest, highest + 1)


class Git(Struct, frozen=True):
    """The checkout that the package runs from."""

    commit: str
    """Full hash of the commit."""
    is_dirty: bool
    """True if the working tree had uncommitted changes."""


class Cpu(Struct, frozen=True):
    """The processor and its memory."""

    model: str
    """Name of the processor."""
    num_cores: int | None
    """Physical cores."""
    num_threads: int | None
    """Logical processors."""
    num_usable_threads: int | None
    """Logical processors that this process may use."""
    memory_bytes: int
    """Bytes of the machine's memory."""


class Gpu(Struct, frozen=True):
    """A GPU of the machine, as the driver describes it."""

    name: str
    """Name of the card."""
    memory_bytes: int | None = None
    """Bytes of the card's memory."""
    driver: Annotated[str | None, shown_as("driver")] = None
    """Version of the driver."""
    compute_capability: str | None = None
    """CUDA compute capability, such as 9.0."""
    power_limit_w: Annotated[float | None, shown_as("power limit (W)")] = None
    """Enforced power limit in watts."""


class Torch(Struct, frozen=True, omit_defaults=True):
    """PyTorch and its settings."""

    version: Annotated[str, shown_as("torch")]
    """Version of torch."""
    cuda: Annotated[str | None, shown_as("CUDA")]
    """CUDA version that torch was built for. Null for a CPU build."""
    devices: tuple[str, ...]
    """Names of the GPUs that torch may use, in its order."""
    num_threads: int
    """Torch's default number of CPU threads for one operation."""
    float32_matmul_precision: Annotated[str, shown_as("float32 precision")]
    """Precision of matrix products in float32: highest, high or medium."""
    attention_kernels: tuple[str, ...] = ()
    """Attention kernels that torch may use on a GPU. Empty if unknown."""


class Threads(Struct, frozen=True, omit_defaults=True):
    """CPU threads of the engine's operations."""

    num: int
    """CPU threads of one operation for vanilla, and for each method without its own number."""
    chosen_by: Literal["option", "environment", "torch", "measured"]
    """option: --threads; environment: OMP_NUM_THREADS or MKL_NUM_THREADS; torch: its default;
    measured: the fastest.
    """
    waiting: Literal["brief", "passive", "own", "unknown"]
    """brief: waiting threads spin for microseconds, then sleep; passive: they sleep; own: the
    user decides; unknown: they may spin.
    """
    step_s: dict[str, float] = {}
    """Seconds of a step of the target, for each number of threads that was tried."""
    prefill: int | None = None
    """CPU threads of every prefill. Absent if not measured; prefills then use `num`."""
    prefill_s: dict[str, float] = {}
    """Seconds of a prefill, for each number of threads that was tried."""
    methods: dict[str, int] = {}
    """CPU threads of decoding, by method. Other methods use `num`."""
    method_step_s: dict[str, dict[str, float]] = {}
    """Seconds of a step by method, for each number of threads that was tried. Methods with equal
    trees share a trial.
    """
    row_step_s: dict[str, dict[str, float]] = {}
    """Seconds of a step of the target by number of rows, for each number of threads that was tried.
    """
    share_of_others: float = 0.0
    """Share of the processor that other programs used during trials of threads. Absent if small."""
    num_changes: int = 0
    """Number of times that `num` changed between prompts. Only older versions wrote it."""

    @property
    def of_prefill(self) -> int:
        """The number of threads of every prefill."""
        return self.prefill or self.num

    def of(self, method: str) -> int:
        """The number of threads with which a method decodes."""
        return self.methods.get(method, self.num)

    @property
    def own(self) -> dict[str, int]:
        """The numbers of threads that differ from vanilla's, by method."""
        return {method: num for method, num in self.methods.items() if num != self.num}

    @property
    def text(self) -> str:
        """All numbers of threads, in words."""
        others = [f"{num} for {method}" for method, num in self.own.items()]
        if self.of_prefill != self.num:
            others.insert(0, f"{self.of_prefill} for prefills")
        return ", ".join([str(self.num), *others])


class Environment(Struct, frozen=True):
    """Hardware, versions and settings. They never include a path, a user name or a host name."""

    specbench: str
    """Version of specbench."""
    git: Git | None
    """State of the checkout. Null for an installed package."""
    python: str
    """Version of Python."""
    os: str
    """Operating system, kernel and architecture."""
    cpu: Cpu
    """Processor."""
    gpus: tuple[Gpu, ...]
    """All GPUs of the machine."""
    torch: Torch
    """PyTorch."""
    transformers: Annotated[str | None, shown_as("transformers")]
    """Version of transformers."""
    variables: Annotated[
        dict[str, str], shown_as("environment variables")
    ] = {}  # msgspec copies it
    """Environment variables that change speed or numerics."""

    def gpu(self, device: str) -> Gpu | None:
        """The GPU that a device such as "cuda:1" names, or the first of "cuda:0-1". None for a CPU.

        The driver and torch list GPUs in different orders, so they are matched by name.
        """
        if not gpu_numbers(device):
            return None
        index = gpu_numbers(device)[0]
        if index >= len(self.torch.devices):  # torch does not list it: the driver's first GPU
            return self.gpus[0] if self.gpus else None
        name = self.torch.devices[index]
        return next((gpu for gpu in self.gpus if gpu.name == name), Gpu(name))

    def device_phrase(self, device: str, threads: int | None) -> str:
        """The hardware of a device in words: "2 x NVIDIA A100, 80 GiB, driver 550", or a CPU with
        its cores, memory and threads.

        `device` is "cpu", "cuda:1" or the like. `threads` is the number of CPU threads of the
        engine in this process, or None for a server. It is left out for a GPU.
        """
        if gpu := self.gpu(device):  # the first GPU of the device; None for a CPU
            num_gpus = len(gpu_numbers(device))  # 2 for "cuda:0-1"
            count_text = f"{num_gpus} x " if num_gpus > 1 else ""
            driver = gpu.driver or UNKNOWN
            memory_text = _memory(gpu.memory_bytes)  # ", 80 GiB"; empty if unknown
            return f"{count_text}{gpu.name}{memory_text}, driver {driver}"
        cores = UNKNOWN if self.cpu.num_cores is None else self.cpu.num_cores  # or their number
        memory_text = _memory(self.cpu.memory_bytes)
        phrase = f"{self.cpu.model}, {cores} cores{memory_text}"
        if threads is None:
            return phrase
        return f"{phrase}, 1 thread" if threads == 1 else f"{phrase}, {threads} threads"

    @property
    def software_phrase(self) -> str:
        """The versions of the software in words."""
        return (
            f"specbench {self.specbench}, torch {self.torch.version}, "
            f"transformers {self.transformers or UNKNOWN}, Python {self.python}"
        )

    @property
    def commit_phrase(self) -> str:
        """The first twelve digits of the commit, with "+dirty" if files were changed."""
        if self.git is None:
            return UNKNOWN
        return self.git.commit[:12] + ("+dirty" if self.git.is_dirty else "")


def _memory(num_bytes: int | None) -> str:
    """The size as the end of a phrase, such as ", 80 GiB". Empty if it is unknown (None)."""
    return "" if num_bytes is None else f", {num_bytes / 2**30:.0f} GiB"
