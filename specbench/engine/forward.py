"""Outputs of a forward of the target, and the ones that a drafter reads."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Needs:
    """Outputs of the target's forwards that a drafter reads.

    `hidden`: final hidden states, after the last norm. `layer_inputs`: inputs of these decoder
    layers, counted from 0; the number of layers stands for the last one's output.
    `all_prompt_positions`: both for every prompt token, not only the last one.
    """

    hidden: bool = False
    layer_inputs: tuple[int, ...] = ()
    all_prompt_positions: bool = False


@dataclass(frozen=True, slots=True)
class Forward:
    """Outputs of one target forward, one row per node (prefill: see `Target.prefill`)."""

    logits: Tensor  # [nodes, vocab]
    hidden: Tensor | None = None  # [nodes, hidden]
    layer_inputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> [nodes, hidden]
