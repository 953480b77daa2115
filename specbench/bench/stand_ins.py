"""Stand-ins by model card: tiny in a known model's shape, and whether it fits the device.

Knows cards, shapes and memory. How a stand-in is made is `zoo.stand_in`'s.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.checkpoints import read_config
from specbench.bench.contestants import Contestant, Found
from specbench.bench.memory import BYTES, MemoryNeed, check_need, estimate
from specbench.bench.models import Dtype, ModelCard, draft_shapes, find_model, known_models
from specbench.errors import UserError
from specbench.types import Shape

if TYPE_CHECKING:
    from specbench.engine.drafter import Method
    from specbench.engine.target import Target
    from specbench.zoo.stand_in.blueprint import Blueprint
    from specbench.zoo.stand_in.plan import StandIn

STAND_IN_WARNING = (
    "The weights are a stand-in: times are those of the real shape; tokens and accepted lengths "
    "are those of tiny, whose rotary base and context it has."
)
_CONTEXT = "max_position_embeddings"
_FIELDS = {
    "num_hidden_layers": "num_layers", "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size", "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads", "head_dim": "own_head_dim",
    "vocab_size": "vocab_size", _CONTEXT: "context", "num_local_experts": "num_experts",
}  # fmt: skip
"""What config.json calls the fields of a shape."""


@dataclass(frozen=True, slots=True)
class BuiltStandIn:
    """A stand-in's target on its device, its drafters' weights yet to be made, and the cost."""

    target: Target
    drafters: Mapping[str, Blueprint]  # by the name that a model card has for them
    seconds: float
    num_bytes: int


def build_stand_in(name: str, device: str, dtype: Dtype) -> BuiltStandIn:
    """The stand-in of a model by its name, built on a device: the library's way in.

    A drafter is built by `method.build(options, BuildContext(target, drafters[method.weights]))`.

    Raises:
        UserError: no such model, a shape that cannot be had, or too little memory.
    """
    import torch

    from specbench.engine.load import load_target

    card = find_model(name)
    stand_in = stand_in_of(card)
    check_stand_in_fits(stand_in, [], dtype, device)
    began = time.perf_counter()
    target = load_target(
        stand_in.target, dtype=getattr(torch, dtype), device=torch.device(device)
    )  # fmt: skip
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
    seconds = time.perf_counter() - began
    num_bytes = stand_in.target.num_numbers * target.dtype.itemsize
    return BuiltStandIn(target, stand_in.drafters, seconds, num_bytes)


def stand_in_of(card: ModelCard) -> StandIn:
    """The stand-in of a card's model, with that of its SpS draft model if the card has one.

    Raises:
        UserError: the card's shape is not known, or cannot hold tiny.
    """
    from specbench.zoo.stand_in.plan import plan_stand_in

    shape = card.shape or (None if card.is_embedded else _folder_shape(card))
    if shape is None:
        what = "it is what they are made from" if card.is_embedded else "its shape is not known"
        known = [name for name, other in known_models().items() if _is_plain(other)]
        raise UserError(
            f"{card.name} has no stand-in: {what}.",
            f"Give a folder with the model's config.json, or one of {', '.join(known)}.",
        )
    draft = card.drafter("sps")
    return plan_stand_in(card.name, shape, draft_shapes().get(draft.repo) if draft else None)


def find_weights(stand_in: StandIn, method: Method, options: Any) -> Found:
    """A method's weights in a stand-in: those of a folder would not match it."""
    if method.weights is None:
        return Found(None)
    if given := getattr(options, "weights", ""):
        raise UserError(
            f"--method {method.name}:weights={given} names weights, but a stand-in has its own.",
            "Leave out weights=, or leave out --weights stand-in.",
        )
    weights = stand_in.drafters.get(method.weights)
    return Found(weights, is_there=weights is not None)


def check_stand_in_fits(
    stand_in: StandIn, contestants: Sequence[Contestant], dtype: Dtype, device: str
) -> MemoryNeed:
    """What target and drafters need, if the device has that much free.

    A drafter may copy its tensors while it is built, so that the largest counts twice.
    """
    what, context = f"The stand-in of {stand_in.name}", stand_in.target.config[_CONTEXT]
    weights = [c.weights for c in contestants]
    drafters = [made.num_numbers for made in weights if not isinstance(made, Path | None)]
    numbers = stand_in.target.num_numbers + sum(drafters) + max(drafters, default=0)
    cached = estimate(stand_in.shape, dtype, context=context, what=what).kv_bytes
    need = MemoryNeed(numbers * BYTES[dtype], cached)
    check_need(need, dtype, device, context=context, what=what)
    return need


def _is_plain(card: ModelCard) -> bool:
    return card.shape is not None and card.shape.num_experts == 1


def _folder_shape(card: ModelCard) -> Shape | None:
    """The shape in a folder's config.json, which needs nothing beside it."""
    if not Path(card.repo).is_dir():
        return None
    config = read_config(Path(card.repo), f"Model {card.name}")
    defaults = {
        "num_key_value_heads": config.get("num_attention_heads"),
        "num_local_experts": 1,
        "head_dim": None,
    }
    given: dict[str, Any] = {
        field: config.get(name) or defaults.get(name) for name, field in _FIELDS.items()
    }
    if given["own_head_dim"] is None:
        del given["own_head_dim"]  # hidden size by heads
    numbers = {name: given.get(field, 1) for name, field in _FIELDS.items()}
    wrong = [name for name, n in numbers.items() if not isinstance(n, int) or n < 1]
    if wrong:
        raise UserError(
            f"The config.json in {card.repo} tells no {', '.join(wrong)}.",
            "A stand-in takes its shape from a Llama-like model's config.json.",
        )
    return Shape(**given, architecture=str(config.get("model_type")))
