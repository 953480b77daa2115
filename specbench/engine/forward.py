"""Outputs of a forward of the target, and the choice of outputs that a drafter reads."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Needs:
    """Outputs of the target's forwards that a drafter reads, besides the logits."""

    hidden: bool = False
    """It reads the final hidden states, after the last norm."""
    layer_inputs: tuple[int, ...] = ()
    """Decoder layers whose inputs it reads, counted from 0. The number of layers stands for the
    output of the last layer.
    """
    all_prompt_positions: bool = False
    """It reads these outputs for every prompt token, not only for the last one."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Outputs of one target forward, one row per node (prefill: see `Target.prefill`)."""

    logits: Tensor  # [nodes, vocab]
    hidden: Tensor | None = None  # [nodes, hidden]
    layer_inputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> [nodes, hidden]
