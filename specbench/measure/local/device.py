"""Pick the device of a run (a CPU or GPUs), and how steps run on it (eagerly or as CUDA graphs)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from specbench.errors import TooLarge, UserError
from specbench.log.machine import gpu_numbers

T = TypeVar("T")
KERNELS = {
    "torch": "",
    "plain": "a CPU, or one GPU of compute capability 8.0 or higher",
    "overlapped": "one GPU of compute capability 9.0 or higher",
}
"""Kinds of kernels, from the simplest to the fastest, with the device that each kind needs."""


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a run."""

    name: str
    """The device's name: "cpu", "cuda:1", or "cuda:0-1" for layers spread over GPUs."""
    reason: str = ""
    """The reason why no GPU can be used; empty if there is a GPU."""

    @property
    def kind(self) -> str:
        """The name without numbers: "cpu" or "cuda"."""
        return self.name.partition(":")[0]

    @property
    def num_gpus(self) -> int:
        return len(gpu_numbers(self.name))

    @property
    def capability(self) -> tuple[int, int]:
        """The lowest compute capability among its GPUs."""
        import torch

        return min(map(torch.cuda.get_device_capability, gpu_numbers(self.name)))

    @property
    def has_bfloat16(self) -> bool:
        """False if a GPU emulates bfloat16, as those below compute capability 8.0 do."""
        return not self.num_gpus or self.capability >= (8, 0)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kinds of kernels that the device can run, from the simplest to the fastest."""
        kinds = tuple(KERNELS)  # "torch", "plain", "overlapped"
        if not self.num_gpus:
            return kinds[:2]
        if self.num_gpus > 1 or self.capability < (8, 0):
            return kinds[:1]  # only torch's
        return kinds if self.capability >= (9, 0) else kinds[:2]


@dataclass(frozen=True, slots=True)
class Mode:
    """The execution of steps, and the kind of their kernels."""

    name: Literal["eager", "graph"]
    reason: str | None = None
    """The reason why graphs are not used; None if they are, or if the user chose eager steps."""
    kernels: str = "auto"
    """The kind of kernels: a key of KERNELS, or "auto"."""


EAGER = Mode("eager")


def pick_device(requested: str) -> Device:
    """The device that `--device` means on this machine.

    `requested` is the option's value: "auto", "cpu", "cuda", "cuda:1" or "cuda:0-3".

    Raises:
        UserError: a requested GPU does not exist, or the text is not a device.
    """
    import torch

    num_gpus_here = count_gpus(torch)
    # The reason why there is no GPU, as the end of a sentence; empty if there is a GPU.
    no_gpu_reason = "" if num_gpus_here else _no_gpu_reason(torch)
    if requested == "cpu" or (requested == "auto" and not num_gpus_here):
        return Device("cpu", reason=no_gpu_reason)
    # The numbers of the requested GPUs, which count from 0: "cuda" and "auto" mean GPU 0. Empty if
    # the text has no valid number.
    requested_gpus = gpu_numbers("cuda" if requested == "auto" else requested)
    if not requested_gpus:
        raise UserError(
            f"--device {requested} is not a device: it names neither a CPU nor GPUs by number.",
            "Give auto, cpu, cuda, cuda:1 or cuda:0-3.",
        )
    if requested_gpus[-1] >= num_gpus_here:  # the last does not exist
        problem = f"there are {num_gpus_here} GPU(s)" if num_gpus_here else no_gpu_reason
        raise UserError(
            f"--device {requested} cannot be used: {problem}.",
            "Use --device cpu, or see `specbench doctor`.",
        )
    return _gpus(requested_gpus)


def fitted(requested: str, use: Callable[[Device], T]) -> T:
    """The result of `use` on the device, or on several GPUs if the model is too large for one.

    `requested` is the value of `--device`. `use` takes a device, and raises TooLarge if the model
    does not fit on the device.

    Raises:
        UserError: the requested GPU does not exist.
        TooLarge: the model does not fit, and either there are no more GPUs, or the user named them.
    """
    device = pick_device(requested)
    while True:
        try:
            return use(device)
        except TooLarge as error:
            device = _with_more_gpus(device, requested, error)


def pick_mode(requested: str, device: Device, kernels: str = "auto") -> Mode:
    """Choose the execution of steps on this device: eager or CUDA graphs, and a kind of kernels.

    `requested` is the value of `--execution` ("auto", "eager" or "graph"), `kernels` the value of
    `--kernels` ("auto" or a kind), and `device.kernels` the kinds that the device can run. With
    `--execution auto`, steps are graphs if the device can replay them.

    Raises:
        UserError: the options ask for graphs or kernels that the device cannot run.
    """
    if kernels not in ("auto", *device.kernels):
        capability_phrase = ""
        if device.num_gpus == 1:
            major, minor = device.capability
            capability_phrase = f" of compute capability {major}.{minor}"
        raise UserError(  # KERNELS[kernels] is the device that this kind needs, in words
            f"--kernels {kernels} needs {KERNELS[kernels]}, but this run is on "
            f"{device.name}{capability_phrase}.",
            f"Give one of {', '.join(('auto', *device.kernels))}.",
        )
    if requested == "eager":
        return Mode("eager", kernels=kernels)  # without a reason, since the user asked for it
    no_graph_reason = None  # None if the device can replay graphs
    if not device.num_gpus:
        no_graph_reason = "CUDA graphs need a CUDA device"
    elif device.num_gpus > 1:
        no_graph_reason = f"the model is spread over {device.num_gpus} GPUs"
    if requested == "graph" and no_graph_reason:
        raise UserError(f"--execution graph cannot be used: {no_graph_reason}.", "Leave it out.")
    return Mode("eager" if no_graph_reason else "graph", reason=no_graph_reason, kernels=kernels)


def _with_more_gpus(device: Device, requested: str, error: TooLarge) -> Device:
    """The device to try next, with more GPUs, because the model was too large for `device`.

    The device has the first GPUs of this machine. Their number is `error.num_gpus_needed`, but at
    least one more than before. `requested` is the value of `--device`.

    Raises:
        TooLarge: the device is a CPU, this machine has too few GPUs, or the user named the GPUs.
    """
    import torch

    num_gpus_here = count_gpus(torch)
    num_gpus_needed = max(error.num_gpus_needed, device.num_gpus + 1)
    has_gpu_number = ":" in requested  # as in "cuda:1": the user named the GPUs
    if device.name == "cpu" or has_gpu_number or num_gpus_here < 2:
        raise error
    if num_gpus_needed > num_gpus_here:  # the error then says how many there are
        raise TooLarge(
            f"{error.message} There are {num_gpus_here}.",
            error.hint,
            num_gpus_needed=num_gpus_needed,
        ) from error
    return _gpus(range(num_gpus_needed))


def _gpus(numbers: range) -> Device:
    first_gpu, last_gpu = numbers[0], numbers[-1]
    return Device(f"cuda:{first_gpu}" + (f"-{last_gpu}" if last_gpu != first_gpu else ""))


def count_gpus(torch: Any) -> int:
    """The number of GPUs that torch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _no_gpu_reason(torch: Any) -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this build of torch ({torch.__version__}) is for CPUs only"
    return "torch finds no CUDA device (driver missing, or none visible)"
