"""Load the engine of a setup and warm it up: the target on its device, and a drafter a method.

The device is chosen first, and the execution of steps on it.

A method that cannot be built has a drafter too, which fails. In the warm-up every method
decodes a little, and graphs are captured.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from specbench.errors import MethodFault, SpecbenchError, TooLarge, UserError, containing
from specbench.log.backend import HookTimes
from specbench.log.machine import gpu_numbers
from specbench.measure.base import outer_clock
from specbench.measure.local.memory import Fingerprint, MemoryLedger
from specbench.types import Completion, Request, Sampling

if TYPE_CHECKING:
    import torch

    from specbench.engine.drafter import Drafter
    from specbench.engine.execution import Execution
    from specbench.engine.layers.ops import Ops
    from specbench.engine.target import Target
    from specbench.measure.spec import RunSpec
    from specbench.models.cards import Dtype, ModelCard
    from specbench.models.chat import ChatCodec
    from specbench.models.memory import MemoryNeed
    from specbench.settings.run_method import RunMethod
    from specbench.zoo.stand_in.plan import StandIn


T = TypeVar("T")
KERNELS = {
    "torch": "",
    "plain": "a CPU, or one GPU of compute capability 8.0 or higher",
    "overlapped": "one GPU of compute capability 9.0 or higher",
}
"""Kinds of kernels, from the simplest to the fastest, and what each one needs."""
WARM_UP_TOKENS = 32
Complete = Callable[[str, Request], Completion]


@dataclass(frozen=True, slots=True)
class Device:
    """Device of a run: "cpu", "cuda:1", or "cuda:0-1" for layers spread over GPUs.

    `reason` says why it is not a GPU, if none can be used.
    """

    name: str
    reason: str = ""

    @property
    def kind(self) -> str:
        """The name without numbers: "cpu" or "cuda"."""
        return self.name.partition(":")[0]

    @property
    def num_gpus(self) -> int:
        return len(gpu_numbers(self.name))

    @property
    def capability(self) -> tuple[int, int]:
        """The lowest compute capability of its GPUs."""
        import torch

        return min(map(torch.cuda.get_device_capability, gpu_numbers(self.name)))

    @property
    def has_bfloat16(self) -> bool:
        """False if a GPU emulates bfloat16, as those below compute capability 8.0 do."""
        return not self.num_gpus or self.capability >= (8, 0)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kinds of kernels that it can run."""
        kinds = tuple(KERNELS)
        if not self.num_gpus:
            return kinds[:2]
        if self.num_gpus > 1 or self.capability < (8, 0):
            return kinds[:1]
        return kinds if self.capability >= (9, 0) else kinds[:2]


@dataclass(frozen=True, slots=True)
class Mode:
    """Execution of steps, and the kind of their kernels.

    `reason` says why graphs are not used, unless that was asked for.
    """

    name: Literal["eager", "graph"]
    reason: str | None = None
    kernels: str = "auto"


EAGER = Mode("eager")


def pick_device(requested: str) -> Device:
    """The device that `--device` means on this machine.

    Raises:
        UserError: the GPU that is asked for does not exist.
    """
    import torch

    count = _count(torch)
    reason = "" if count else _no_gpu_reason(torch)
    if requested == "cpu" or (requested == "auto" and not count):
        return Device("cpu", reason)
    numbers = gpu_numbers("cuda" if requested == "auto" else requested)
    if not numbers or numbers[-1] >= count:
        there = f"there are {count} GPU(s)" if count else reason
        raise UserError(
            f"--device {requested} cannot be used: {there}.",
            "Use --device cpu, or see `specbench doctor`.",
        )
    return _gpus(numbers)


def fitted(requested: str, use: Callable[[Device], T]) -> T:
    """The result of `use` on the device; on several GPUs if the model is too large for one.

    Raises:
        UserError: the GPU that is asked for does not exist.
        TooLarge: `use` raised it, and there are no more GPUs, or the user named one.
    """
    device = pick_device(requested)
    while True:
        try:
            return use(device)
        except TooLarge as error:
            device = _with_more_gpus(device, requested, error)


def pick_mode(requested: str, device: Device, kernels: str = "auto") -> Mode:
    """Execution of steps under `--execution` and `--kernels` on this device.

    Raises:
        UserError: the device cannot replay graphs, or has no such kernels.
    """
    if kernels not in ("auto", *device.kernels):
        is_one = device.num_gpus == 1
        own = " of compute capability {}.{}".format(*device.capability) if is_one else ""
        raise UserError(
            f"--kernels {kernels} needs {KERNELS[kernels]}, and this run is on {device.name}{own}.",
            f"Give one of {', '.join(('auto', *device.kernels))}.",
        )
    if requested == "eager":
        return Mode("eager", kernels=kernels)
    reason = None if device.num_gpus else "CUDA graphs need a CUDA device"
    if device.num_gpus > 1:
        reason = f"the model is spread over {device.num_gpus} GPUs"
    if requested == "graph" and reason:
        raise UserError(f"--execution graph cannot be used: {reason}.", "Leave it out.")
    return Mode("eager" if reason else "graph", reason, kernels)


def _with_more_gpus(device: Device, requested: str, error: TooLarge) -> Device:
    import torch

    count = _count(torch)
    needed = max(error.num_gpus_needed, device.num_gpus + 1)
    if device.name == "cpu" or ":" in requested or count < 2:
        raise error
    if needed > count:
        raise TooLarge(
            f"{error.message} There are {count}.", error.hint, num_gpus_needed=needed
        ) from error
    return _gpus(range(needed))


def _gpus(numbers: range) -> Device:
    ends = dict.fromkeys((numbers[0], numbers[-1]))
    return Device(f"cuda:{'-'.join(map(str, ends))}")


def _count(torch: Any) -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _no_gpu_reason(torch: Any) -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this build of torch ({torch.__version__}) is for CPUs only"
    return "torch finds no CUDA device (driver missing, or none visible)"


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A model and its methods of a spec, found and checked.

    `missing` are methods without a checkpoint. A stand-in has the card of the model whose
    shape it takes, and tiny's folder as its `path`. `broken` says which plug-ins cannot run,
    and why. `quantization` is the checkpoint's own format. `need` is the memory that was found
    to be free. With `settings` auto, methods get those that are fastest here.
    """

    spec: RunSpec
    card: ModelCard
    path: Path
    device: Device
    dtype: Dtype
    codec: ChatCodec
    methods: tuple[RunMethod, ...]
    missing: tuple[RunMethod, ...]
    broken: tuple[str, ...] = ()
    stand_in: StandIn | None = None
    mode: Mode = EAGER
    quantization: str = ""
    need: MemoryNeed | None = None
    settings: str = "paper"


def build_drafters(
    target: Target, methods: Iterable[RunMethod], ledger: MemoryLedger
) -> dict[str, Drafter]:
    """The drafter of every method by the method's label.

    The ledger counts what each one holds, and the time that building it took. A method whose
    build fails has a drafter that fails in every sample, with the reason.

    Raises:
        SpecbenchError: a method refuses its options or weights.
    """
    from specbench.engine.drafter import BuildContext, Drafter

    drafters: dict[str, Drafter] = {}
    for one in methods:
        began = outer_clock()
        with ledger.holder(one.label):
            try:
                with containing(f"Method {one.label!r} is broken"):
                    drafter = one.method.build(one.options, BuildContext(target, one.weights))
                    if not isinstance(drafter, Drafter):
                        raise TypeError(f"build returned a {type(drafter).__name__}, no Drafter")
            except MethodFault as fault:
                drafter = broken_drafter(fault)
            drafters[one.label] = drafter
        ledger.hooks[one.label] = HookTimes(outer_clock() - began)
    return drafters


def broken_drafter(fault: SpecbenchError) -> Drafter:
    """A drafter that fails with this error whenever it is used."""
    from specbench.engine.drafter import Drafter

    class Broken(Drafter):
        @property
        def needs(self) -> Any:  # type: ignore[override]  # what a completion asks for first
            raise fault.with_traceback(None)

    return Broken()


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A target with the drafters of its methods, and the seconds it took to load them.

    `weights` is the fingerprint taken before the drafters were built.
    """

    target: Target
    drafters: Mapping[str, Drafter]
    seconds: float
    ledger: MemoryLedger
    weights: Fingerprint | None = None


def load_engine(setup: EngineParts) -> LoadedEngine:
    """Load the target and the drafters of all methods."""
    began = perf_counter()
    target = load_model(setup)
    ledger = MemoryLedger(target)
    weights = Fingerprint(target.model, load_s=perf_counter() - began)
    drafters = build_drafters(target, setup.methods, ledger)
    return LoadedEngine(target, drafters, perf_counter() - began, ledger, weights)


def load_model(setup: EngineParts) -> Target:
    """Load the target onto its device, or spread over its GPUs."""
    import torch

    from specbench.engine.load import load_target

    dtype = getattr(torch, setup.dtype)
    gpus = [torch.device("cuda", number) for number in gpu_numbers(setup.device.name)]
    device = gpus[0] if gpus else torch.device("cpu")
    source = setup.stand_in.target if setup.stand_in else setup.path
    draft_bytes = setup.need.draft_bytes if setup.need else 0
    execution = make_execution(setup.mode, device, dtype)
    spread = None
    if len(gpus) > 1:
        from specbench.engine.spread import Spread

        spread = Spread(tuple(gpus), draft_bytes)
    return load_target(source, dtype=dtype, device=device, execution=execution, spread=spread)


def make_execution(mode: Mode, device: torch.device, dtype: torch.dtype) -> Execution:
    """The execution of steps on a device, which becomes the current one."""
    import torch

    from specbench.engine.execution import Execution

    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels and graphs go to the current one
    if mode.name == "eager":
        return Execution(_ops(mode, device, dtype))
    from specbench.engine.graphs.cuda import Graphs
    from specbench.engine.graphs.recorder import CudaRecorder

    gc.freeze()  # torch before 2.9 collects garbage before each capture
    return Graphs(CudaRecorder(device), _ops(mode, device, dtype))


def _ops(mode: Mode, device: torch.device, dtype: torch.dtype) -> Ops:
    """The operations of layers. Without `--kernels`, eager steps on a GPU have torch's."""
    from specbench.engine.kernels.pick_ops import pick_native_ops, pick_ops
    from specbench.engine.layers.ops import Ops

    is_gpu = device.type == "cuda"
    if mode.kernels == "torch" or (is_gpu and mode.name == "eager" and mode.kernels == "auto"):
        return Ops()
    if is_gpu:
        return pick_ops(device, dtype, mode.kernels)
    from specbench.engine.kernels.native_build import user_folder

    return pick_native_ops(dtype, user_folder())


def warm_up(
    target: Target,
    drafters: Mapping[str, Drafter],
    complete: Complete,
    requests: Sequence[Request],
) -> dict[str, str | None]:
    """Let every method decode a little at every temperature, so that no sample pays for it.

    With graphs, capture every cache size that the requests can reach and every size that the
    drafters' trees can have. Returns for each method the reason why its steps are not replayed
    as graphs, None if they are.
    """
    execution, first = target.execution, requests[0]
    samplings = list(dict.fromkeys(request.sampling for request in requests))
    prompts = [first.prompt_ids]

    def decode_a_little(
        label: str, prompt_ids: tuple[int, ...], samplings: Iterable[Sampling]
    ) -> None:
        tokens = min(WARM_UP_TOKENS, first.max_new_tokens)
        for sampling in samplings:
            with suppress(Exception):  # it will fail in samples too
                complete(label, Request(prompt_ids, tokens, sampling))

    def capture(longest: int) -> None:
        from specbench.engine.graphs.capture import capture_graphs

        for drafter in drafters.values():
            with suppress(Exception), containing("A draft"):
                capture_graphs(target, drafter, longest, first.max_new_tokens, samplings)

    if execution.is_static:
        longest = max(len(request.prompt_ids) + request.max_new_tokens for request in requests)
        longest = min(longest, target.context)
        prompts += _prompts_to(longest, first.prompt_ids)
        with execution.paused():  # a cache that grows drops all graphs: full size first
            capture(longest)
            for label in drafters:
                decode_a_little(label, prompts[-1], samplings[:1])
        capture(longest)
    reasons: dict[str, str | None] = {}
    for label in drafters:
        execution.failures.clear()
        for prompt_ids in prompts:
            decode_a_little(label, prompt_ids, samplings)
        reasons[label] = next(iter(sorted(execution.failures)), target.eager_reason)
    execution.close()
    return reasons


def _prompts_to(longest: int, first: tuple[int, ...]) -> list[tuple[int, ...]]:
    """A prompt for each size of the cache that a sequence up to `longest` tokens reaches.

    The last one is completed to the very end, where trees may need the largest size.
    """
    from specbench.engine.buckets import BUCKET, buckets

    lengths = [BUCKET, *buckets(longest)[:-1], longest - WARM_UP_TOKENS]
    return [
        (first * (length // len(first) + 1))[:length]
        for length in lengths
        if 0 < length <= longest - WARM_UP_TOKENS
    ]
