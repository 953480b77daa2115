"""Load the engine of a setup and warm it up: the target on its device, and a drafter a method.

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
from typing import TYPE_CHECKING, Any

from specbench.errors import MethodFault, SpecbenchError, containing
from specbench.log.backend import HookTimes
from specbench.log.machine import gpu_numbers
from specbench.measure.base import outer_clock
from specbench.measure.local.device import EAGER, Device, Mode
from specbench.measure.local.memory import Fingerprint, MemoryLedger
from specbench.types import Completion, Request, Sampling

if TYPE_CHECKING:
    import torch

    from specbench.engine.drafter import Drafter
    from specbench.engine.execution import Execution
    from specbench.engine.layers.ops import Ops
    from specbench.engine.target import Target
    from specbench.measure.methods import RunMethod
    from specbench.measure.spec import RunSpec
    from specbench.models.cards import Dtype, ModelCard
    from specbench.models.chat import ChatCodec
    from specbench.models.memory import MemoryNeed
    from specbench.zoo.stand_in.plan import StandIn


WARM_UP_TOKENS = 32
Complete = Callable[[str, Request], Completion]


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
    from specbench.engine.graphs.cuda import BUCKET, buckets

    lengths = [BUCKET, *buckets(longest)[:-1], longest - WARM_UP_TOKENS]
    return [
        (first * (length // len(first) + 1))[:length]
        for length in lengths
        if 0 < length <= longest - WARM_UP_TOKENS
    ]
