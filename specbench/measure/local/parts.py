"""The parts of an engine, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.measure.local.device import EAGER, Device, Mode
from specbench.measure.methods import RunMethod
from specbench.models.cards import Dtype, ModelCard
from specbench.models.chat import ChatCodec
from specbench.models.memory import MemoryNeed

if TYPE_CHECKING:
    from specbench.zoo.stand_in.plan import StandIn


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A model and its methods, found and checked.

    `missing` are methods without a checkpoint. A stand-in has the card of the model whose
    shape it takes, and tiny's folder as its `path`. `broken` tells which plug-ins cannot run,
    and why. `quantize` is the format to which weights are quantised while they are loaded,
    `quantization` this format or the checkpoint's own. `need` is the memory that was found to
    be free. With `settings` auto, methods get those that are fastest here.
    """

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
    has_phases: bool = False
    is_traced: bool = False
    checks_drafts: bool = False
    quantize: str = ""
    quantization: str = ""
    need: MemoryNeed | None = None
    threads: int | None = None
    settings: str = "paper"
