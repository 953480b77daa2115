"""Load the engine of a setup: the target on its device, and a drafter for each method.

The drafters of a run's methods, also of methods that cannot be built.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specbench.errors import MethodFault, SpecbenchError, containing
from specbench.log.machine import gpu_numbers
from specbench.measure.base import outer_clock
from specbench.measure.local.fingerprint import Fingerprint
from specbench.measure.local.peak_memory import MemoryLedger

if TYPE_CHECKING:
    import torch

    from specbench.engine.drafter import Drafter
    from specbench.engine.execution import Execution
    from specbench.engine.layers.ops import Ops
    from specbench.engine.target import Target
    from specbench.measure.local.device import Mode
    from specbench.measure.local.parts import EngineParts
    from specbench.measure.methods import RunMethod


def build_drafters(
    target: Target,
    methods: Iterable[RunMethod],
    ledger: MemoryLedger,
    seconds: dict[str, float] | None = None,
) -> dict[str, Drafter]:
    """The drafter of every method by the method's label. The ledger counts what each one holds.

    `seconds` receives the time that building each one took.

    A method whose build fails is there too: it fails in every sample, with the reason.

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
                drafter = broken_drafter(fault.message)
            drafters[one.label] = drafter
        if seconds is not None:
            seconds[one.label] = outer_clock() - began
    return drafters


def broken_drafter(reason: str) -> Drafter:
    """A drafter that fails with this reason whenever it is used."""
    from specbench.engine.drafter import Drafter

    class Broken(Drafter):
        @property
        def needs(self) -> Any:  # type: ignore[override]  # what a completion asks for first
            raise SpecbenchError(reason)

    return Broken()


def layer_inputs(drafter: Drafter) -> tuple[int, ...]:
    """The layers of the target whose inputs a drafter reads; none if it does not say."""
    with suppress(Exception), containing("The needs of a drafter"):  # its samples will fail
        return tuple(drafter.needs.layer_inputs)
    return ()


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A target with the drafters of its methods, and the seconds it took to load them.

    `build_s` are the seconds of each drafter, `weights` is the fingerprint taken before them.
    """

    target: Target
    drafters: Mapping[str, Drafter]
    seconds: float
    ledger: MemoryLedger
    build_s: Mapping[str, float] = field(default_factory=dict)
    weights: Fingerprint | None = None


def load_engine(setup: EngineParts) -> LoadedEngine:
    """Load the target and the drafters of all methods."""
    began = perf_counter()
    target = load_model(setup)
    ledger, build_s = MemoryLedger(target), dict[str, float]()
    weights = Fingerprint(target.model, load_s=perf_counter() - began)
    drafters = build_drafters(target, setup.methods, ledger, build_s)
    seconds = perf_counter() - began
    return LoadedEngine(target, drafters, seconds, ledger, build_s=build_s, weights=weights)


def load_model(setup: EngineParts) -> Target:
    """Load the target onto its device, or spread over its GPUs."""
    import torch

    from specbench.engine.load import load_target
    from specbench.engine.spread import Spread

    dtype = getattr(torch, setup.dtype)
    gpus = [torch.device("cuda", number) for number in gpu_numbers(setup.device.name)]
    device = gpus[0] if gpus else torch.device("cpu")
    source = setup.stand_in.target if setup.stand_in else setup.path
    draft_bytes = setup.need.draft_bytes if setup.need else 0
    execution = make_execution(setup.mode, device, dtype)
    return load_target(
        source,
        dtype=dtype,
        device=device,
        execution=execution,
        quantize=setup.quantize,
        spread=Spread(tuple(gpus), draft_bytes) if len(gpus) > 1 else None,
    )


def make_execution(mode: Mode, device: torch.device, dtype: torch.dtype) -> Execution:
    """The execution of steps on a device, which becomes the current one."""
    import torch

    from specbench.engine.execution import Eager

    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels and graphs go to the current one
    if mode.name == "eager":
        return Eager(_ops(mode, device, dtype))
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
