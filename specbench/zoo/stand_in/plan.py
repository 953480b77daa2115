"""A stand-in as a whole: a target and its drafters for a shape, planned in no time, made later.

Knows shapes. Knows nothing of model cards, devices or memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specbench.errors import UserError
from specbench.types import Shape
from specbench.zoo.heads.eagle3 import feature_layers
from specbench.zoo.stand_in import heads
from specbench.zoo.stand_in.blueprint import Blueprint
from specbench.zoo.stand_in.fit import Fit, fit_in, read_config
from specbench.zoo.stand_in.models import language_model

TINY = Path(__file__).resolve().parent.parent / "tiny"
ARCHITECTURES = ("llama", "mistral", "qwen2")
"""Model types that are a Llama's layers, with biases or without."""

TARGET_GAIN, SPS_GAIN = 1024.0, 1.0
"""The constant behind the last norm times the norm of what enters it, which is 320 to 3700 in tiny
and 0.6 to 2.7 in its draft model: the added vocabulary's logits are then -1000 to -50000."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """The weights of a target, and of its drafters by the name that a model card has for them."""

    name: str
    shape: Shape
    target: Blueprint
    drafters: Mapping[str, Blueprint]


def plan_stand_in(name: str, shape: Shape, draft: Shape | None = None, *, seed: int = 0) -> StandIn:
    """The stand-in of a model by its shape; `draft` is that of its SpS draft model, if it has one.

    Every tensor's noise comes from `seed`.

    Raises:
        UserError: the shape is no Llama-like model's, or too small to hold tiny.
    """
    fit, taps = fit_in(TINY / "target", shape), _taps(shape)
    _check(f"A stand-in of {name}", fit)
    of = f"the stand-in of {name}"
    target = language_model(
        TINY / "target", shape, name=of, gain=TARGET_GAIN, taps=taps, seed=seed
    )  # fmt: skip
    drafters = {
        "medusa": heads.medusa(TINY / "medusa", fit, name=of, seed=seed + 1),
        "hydra": heads.hydra(TINY / "hydra", fit, name=of, seed=seed + 2),
        "eagle": heads.eagle(TINY / "eagle", shape, name=of, seed=seed + 3),
        "eagle3": heads.eagle3(TINY / "eagle3", shape, name=of, seed=seed + 4),
    }
    if draft is not None:
        _check(f"A stand-in of the SpS draft model of {name}", fit_in(TINY / "sps", draft))
        drafters["sps"] = language_model(
            TINY / "sps", draft, name=of, gain=SPS_GAIN, taps=(), seed=seed + 5
        )
    return StandIn(name, shape, target, drafters)


def _taps(shape: Shape) -> list[tuple[int, int]]:
    """The layers whose inputs EAGLE-3 reads, in tiny and in the shape."""
    if shape.num_layers < read_config(TINY / "target")["num_hidden_layers"]:
        return []  # refused by `_check`
    small = read_config(TINY / "eagle3")["eagle_aux_hidden_state_layer_ids"]
    return list(zip(small, feature_layers(shape.num_layers), strict=True))


def _check(what: str, fit: Fit) -> None:
    """Refuse a shape that cannot hold the small model."""
    small, big = fit.small, fit.big
    if big.architecture not in ARCHITECTURES or big.num_experts > 1:
        experts = f" of {big.num_experts} experts" if big.num_experts > 1 else ""
        raise UserError(
            f"{what} cannot be made: it is a {big.architecture} model{experts}.",
            f"Stand-ins are made in the shape of {', '.join(ARCHITECTURES)} models.",
        )
    width, heads = big.hidden_size, big.num_heads
    if heads % big.num_kv_heads or big.head_dim % small.head_dim or width % heads:
        raise UserError(
            f"{what} cannot be made: it has {heads} heads of {big.head_dim} in "
            f"{big.num_kv_heads} groups, and is {width:,} wide.",
            f"Heads have to be a multiple of {small.head_dim} wide, as many in each group, and to "
            "divide the width.",
        )
    least = {
        "layers": (big.num_layers, small.num_layers),
        "key/value heads": (big.num_kv_heads, small.num_heads),
        "channels (hidden_size)": (big.hidden_size, small.hidden_size + 1),
        "neurons (intermediate_size)": (big.intermediate_size, small.intermediate_size),
        "tokens (vocab_size)": (big.vocab_size, small.vocab_size),
    }
    lacking = [
        f"{has:,} {name}, {needs:,} are needed" for name, (has, needs) in least.items()
        if has < needs
    ]  # fmt: skip
    if lacking:
        raise UserError(
            f"{what} cannot be made, for tiny does not fit into it: {'; '.join(lacking)}.",
            "Use a larger model's shape, or run tiny itself: `--model tiny`.",
        )
