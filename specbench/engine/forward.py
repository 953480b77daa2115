"""The outputs of a forward of the target, and a drafter's choice among them."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Needs:
    """The outputs of the target's forwards that a drafter reads in addition to the logits."""

    hidden: bool = False
    """True if it reads the final hidden states, after the last norm."""
    layer_inputs: tuple[int, ...] = ()
    """Decoder layers whose inputs it reads, counted from 0. The number of layers stands for the
    output of the last layer.
    """
    all_prompt_positions: bool = False
    """True if it reads these outputs for every prompt token, False if only for the last token."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The outputs of a target forward, one row per node. See `Target.prefill` for prefills."""

    logits: Tensor  # [nodes, vocab]
    hidden: Tensor | None = None  # [nodes, hidden]
    layer_inputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> [nodes, hidden]
