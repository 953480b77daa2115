"""Load the target of a setup onto its device, and build a drafter for each method.

A method that cannot be built gets a drafter that fails.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from msgspec import convert

from specbench.errors import MethodFault, SpecbenchError, containing
from specbench.log.backend import ExecutionHeader, HookTimes, Kernels
from specbench.log.machine import gpu_numbers
from specbench.measure.base import outer_clock
from specbench.measure.local.device import EAGER, Device, Mode
from specbench.measure.local.fingerprint import Fingerprint
from specbench.measure.local.memory import MemoryLedger

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


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The model and the methods of a spec, found and checked."""

    spec: RunSpec
    card: ModelCard
    """The model's card; for a stand-in, the card of the model whose shape it takes."""
    path: Path
    """The model's folder; for a stand-in, the folder of tiny."""
    device: Device
    dtype: Dtype
    codec: ChatCodec
    methods: tuple[RunMethod, ...]
    missing: tuple[RunMethod, ...]
    """Methods without a checkpoint."""
    broken: tuple[str, ...] = ()
    """Warnings about plug-ins that cannot run."""
    stand_in: StandIn | None = None
    mode: Mode = EAGER
    quantization: str = ""
    """The format of the checkpoint's weights, as in run.json; empty for plain weights."""
    need: MemoryNeed | None = None
    """The memory that the run needs, which a check has found free. None if it is not estimated."""
    settings: str = "paper"
    """The source of the methods' settings; "auto" if the warm-up is to choose them."""


def build_drafters(
    target: Target, methods: Iterable[RunMethod], ledger: MemoryLedger
) -> dict[str, Drafter]:
    """Build the drafters of methods for a loaded target. Returns them by the method's label.

    The ledger counts the bytes of GPU memory that each drafter holds, and keeps the seconds that
    building the drafter took (`hooks`, by label). A method whose code fails gets a drafter that
    fails with the same reason in every sample.

    Raises:
        SpecbenchError: a method refuses its options or weights.
    """
    drafters: dict[str, Drafter] = {}
    for method in methods:
        label = method.label
        began_s = outer_clock()
        with ledger.holder(label):  # counts what stays allocated after the block
            try:
                # Any error but a SpecbenchError, which ends the run, becomes a MethodFault.
                with containing(f"Method {label!r} is broken"):
                    drafters[label] = _build(target, method)
            except MethodFault as fault:
                drafters[label] = broken_drafter(fault)
        ledger.hooks[label] = HookTimes(build_s=outer_clock() - began_s)
    return drafters


def _build(target: Target, method: RunMethod) -> Drafter:
    """The drafter that a method builds for the target.

    A drafter may read the inputs of some layers of the target. A prefill of one token then checks
    that the target has these layers, and fails if not.

    Raises:
        TypeError: the method built something other than a drafter.
    """
    from torch import inference_mode

    from specbench.engine.drafter import BuildContext, Drafter

    # `method.weights` is a folder or file, or makes a stand-in's weights; None if it needs none.
    drafter = method.method.build(method.options, BuildContext(target, method.weights))
    if not isinstance(drafter, Drafter):
        raise TypeError(f"build returned a {type(drafter).__name__}, not a Drafter")
    if drafter.needs.layer_inputs:  # numbers of layers
        # `paused`: a CUDA graph captured now would be lost when the cache grows.
        with target.capture(drafter.needs), inference_mode(), target.execution.paused():
            target.prefill([0])  # any token
        target.cache.reset()
    return drafter


def broken_drafter(fault: SpecbenchError) -> Drafter:
    """A drafter that fails with this error whenever it is used."""
    from specbench.engine.drafter import Drafter

    class Broken(Drafter):
        @property
        def needs(self) -> Any:  # type: ignore[override]  # a completion reads this first
            raise fault.with_traceback(None)

    return Broken()


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A loaded target with the drafters of the methods."""

    target: Target
    drafters: Mapping[str, Drafter]
    seconds: float
    """Seconds to load them."""
    ledger: MemoryLedger
    """The GPU memory that each method holds, and the seconds of building its drafter."""
    weights: Fingerprint | None = None
    """Fingerprint of the target's weights, taken before the drafters were built."""


def load_engine(setup: EngineParts) -> LoadedEngine:
    """Load the target and the drafters of all methods, and take the weights' fingerprint."""
    began_s = perf_counter()
    target = load_model(setup)
    ledger = MemoryLedger(target)
    fingerprint = Fingerprint(target.model, load_s=perf_counter() - began_s)
    drafters = build_drafters(target, setup.methods, ledger)
    return LoadedEngine(target, drafters, perf_counter() - began_s, ledger, fingerprint)


def load_model(setup: EngineParts) -> Target:
    """Load the target of a setup onto its device, or spread over several GPUs.

    `setup` has the device, the dtype, and the checkpoint or the stand-in. `setup.mode` says whether
    steps run eagerly or as CUDA graphs. `setup.need` has the bytes of memory that target and
    drafters need; None if not estimated.
    """
    import torch

    from specbench.engine.load import load_target

    dtype = getattr(torch, setup.dtype)
    gpus = [torch.device("cuda", number) for number in gpu_numbers(setup.device.name)]
    device = gpus[0] if gpus else torch.device("cpu")
    # The plan of a stand-in's weights, or the folder of the checkpoint.
    weights_source = setup.stand_in.target if setup.stand_in else setup.path
    execution = make_execution(setup.mode, device, dtype)
    spec = setup.spec
    if spec.phases or spec.trace or spec.check_drafts:  # these options look into a step
        execution.is_joined = False  # no graph computes a whole step
    spread = None  # the placement of the layers on several GPUs
    if len(gpus) > 1:
        from specbench.engine.spread import Spread

        # The first GPU keeps as many bytes free as the drafters need.
        spread = Spread(tuple(gpus), draft_bytes=setup.need.draft_bytes if setup.need else 0)
    return load_target(
        weights_source, dtype=dtype, device=device, execution=execution, spread=spread
    )


def make_execution(mode: Mode, device: torch.device, dtype: torch.dtype) -> Execution:
    """The execution of steps, eager or as CUDA graphs. `device` becomes the current device."""
    import torch

    from specbench.engine.execution import Execution

    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels and graphs go to the current device
    if mode.name == "eager":
        return Execution(_ops(mode, device, dtype))
    from specbench.engine.graphs.cuda import Graphs
    from specbench.engine.graphs.recorder import CudaRecorder

    gc.freeze()  # torch before 2.9 collects garbage before each capture
    return Graphs(CudaRecorder(device), _ops(mode, device, dtype))


def _ops(mode: Mode, device: torch.device, dtype: torch.dtype) -> Ops:
    """The operations that compute layers: torch's, or specbench's own kernels.

    With `--kernels auto`, the default, eager steps on a GPU use torch's operations.
    """
    from specbench.engine.kernels.pick_ops import pick_native_ops, pick_ops
    from specbench.engine.layers.ops import Ops

    is_gpu = device.type == "cuda"
    is_eager_by_default = is_gpu and mode.name == "eager" and mode.kernels == "auto"
    if mode.kernels == "torch" or is_eager_by_default:
        return Ops()  # torch's
    if is_gpu:
        return pick_ops(device, dtype, mode.kernels)
    from specbench.engine.kernels.native_build import user_folder

    return pick_native_ops(dtype, user_folder())


def describe_execution(
    drafter: Drafter, mode: Literal["eager", "graph"], reason: str | None, is_joined: bool
) -> ExecutionHeader:
    """The execution of a method's steps, with facts about its drafter's checkpoint.

    `reason` is why its steps are not replayed as graphs; None if they are, or if the user asked for
    eager steps. With `is_joined`, one graph computes a whole step.
    """
    layer_inputs: tuple[int, ...] = ()  # target layers whose inputs the drafter reads
    with suppress(Exception), containing("The needs of a drafter"):  # its samples will fail
        layer_inputs = tuple(drafter.needs.layer_inputs)
    return ExecutionHeader(
        mode=mode,
        reason=reason,
        is_joined=is_joined and mode == "graph",
        layer_inputs=layer_inputs,
        weights_layout=drafter.weights_layout,  # the published layout of its checkpoint
        weights_facts=drafter.weights_facts,
        num_positions=drafter.num_positions,
        has_guessed_layers=drafter.has_guessed_layers,  # True if no config names them
    )


def describe_kernels(target: Target) -> Kernels:
    """The kernels that compute the layers, with those of them that have failed so far."""
    if target.unfused_reason:
        return Kernels("transformers", target.unfused_reason)
    return convert(target.execution.ops.describe(), Kernels)
