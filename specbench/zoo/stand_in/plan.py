"""Plan a whole stand-in: a target and its drafters for a shape. The weights are made later."""

from collections.abc import Mapping
from dataclasses import dataclass

from specbench.errors import UserError
from specbench.types import Shape
from specbench.zoo import TINY
from specbench.zoo.heads import CONFIG_KEY, feature_layers
from specbench.zoo.stand_in import models
from specbench.zoo.stand_in.blueprint import Blueprint
from specbench.zoo.stand_in.placement import Placement, place, read_config

MIXTURE = "mixtral"
"""The model type that has Llama's layers with several experts in each."""
ARCHITECTURES = ("llama", "mistral", "qwen2", MIXTURE)
"""Model types that have Llama's layers, with or without biases."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """The weights of a target, and of its drafters by their names on model cards."""

    name: str
    shape: Shape
    target: Blueprint
    drafters: Mapping[str, Blueprint]


def plan_stand_in(name: str, shape: Shape, draft: Shape | None = None, *, seed: int = 0) -> StandIn:
    """Plan the stand-in of a model. `draft` is the shape of its SpS draft model, if it has one.

    Every tensor's noise comes from `seed`.

    Raises:
        UserError: the shape is not that of a Llama-like model, or is too small to hold tiny.
    """
    placement = place(TINY / "target", shape)
    title = f"the stand-in of {name}"
    _check(f"A stand-in of {name}", placement)
    small_layers = read_config(TINY / "eagle3")[CONFIG_KEY]
    taps = list(zip(small_layers, feature_layers(shape.num_layers), strict=True))
    gain = models.TARGET_GAIN
    target = models.language_model(
        TINY / "target", shape, name=title, gain=gain, taps=taps, seed=seed
    )
    drafters = {
        "medusa": models.medusa(TINY / "medusa", placement, name=title, seed=seed + 1),
        "hydra": models.hydra(TINY / "hydra", placement, name=title, seed=seed + 2),
        "eagle": models.eagle(TINY / "eagle", shape, name=title, seed=seed + 3),
        "eagle3": models.eagle3(TINY / "eagle3", shape, name=title, seed=seed + 4),
    }
    if draft is not None:
        _check(f"A stand-in of the SpS draft model of {name}", place(TINY / "sps", draft))
        drafters["sps"] = models.language_model(
            TINY / "sps", draft, name=title, gain=models.SPS_GAIN, taps=(), seed=seed + 5
        )
    return StandIn(name, shape, target, drafters)


def _check(what: str, placement: Placement) -> None:
    """Refuse a shape that cannot hold the small model."""
    small, big = placement.small, placement.big
    is_mixture = big.num_experts > 1
    if big.architecture not in ARCHITECTURES or is_mixture != (big.architecture == MIXTURE):
        experts = f" of {big.num_experts} experts" if is_mixture else ""
        raise UserError(
            f"{what} cannot be made: it is a {big.architecture} model{experts}.",
            f"Stand-ins are made in the shapes of {', '.join(ARCHITECTURES)} models. Only "
            f"{MIXTURE} models have several experts.",
        )
    width = big.hidden_size
    num_heads = big.num_heads
    has_even_groups = num_heads % big.num_kv_heads == 0
    has_whole_pairs = big.head_dim % small.head_dim == 0
    if not has_even_groups or not has_whole_pairs or width % num_heads:
        raise UserError(
            f"{what} cannot be made: it has {num_heads} heads of {big.head_dim} in "
            f"{big.num_kv_heads} groups, and is {width:,} wide.",
            f"The width of a head must be a multiple of {small.head_dim}, groups must have equally "
            "many heads, and the number of heads must divide the model's width.",
        )
    sizes = {  # (the shape's number, tiny's number)
        "layers": (big.num_layers, small.num_layers),
        "key/value heads": (big.num_kv_heads, small.num_heads),
        "channels (hidden_size)": (big.hidden_size, small.hidden_size + 1),
        "neurons (intermediate_size)": (big.intermediate_size, small.intermediate_size),
        "tokens (vocab_size)": (big.vocab_size, small.vocab_size),
    }
    lacking = [
        f"{has:,} {name}, {needs:,} are needed"
        for name, (has, needs) in sizes.items()
        if has < needs
    ]
    if lacking:
        raise UserError(
            f"{what} cannot be made, because tiny does not fit into it: {'; '.join(lacking)}.",
            "Use a larger model's shape, or run tiny itself: `--model tiny`.",
        )
