"""Stand-ins by model card: tiny in a known model's shape, checked against the device's memory.

Cards, shapes and memory. `zoo.stand_in` makes the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError
from specbench.models.cards import Dtype, ModelCard, models_file
from specbench.models.checkpoints import read_config
from specbench.models.memory import BYTES, GRAPH_RESERVE, MemoryNeed, check_need, estimate
from specbench.types import CONFIG_NAMES, Shape

if TYPE_CHECKING:
    from specbench.zoo.stand_in.blueprint import Blueprint
    from specbench.zoo.stand_in.plan import StandIn

_FIELDS = {name: field for field, name in CONFIG_NAMES.items()}
_FIELDS["num_local_experts"] = "num_experts"
"""Names in config.json to fields of a shape."""


def stand_in_of(card: ModelCard) -> StandIn:
    """The stand-in of a card's model, and of its SpS draft model if the card has one.

    Raises:
        UserError: the card's shape is unknown, or too small for tiny.
    """
    from specbench.zoo.stand_in.plan import plan_stand_in

    shape = card.shape or (None if card.is_embedded else _folder_shape(card))
    if shape is None:
        what = "stand-ins are made from it" if card.is_embedded else "its shape is unknown"
        raise UserError(
            f"{card.name} has no stand-in: {what}.",
            "Give a folder with the model's config.json, or a Llama-like model of `specbench list "
            "models`.",
        )
    draft = card.weights_of("sps")
    return plan_stand_in(
        card.name, shape, models_file().draft_shape.get(draft.repo) if draft else None
    )


def check_stand_in_fits(
    stand_in: StandIn,
    weights: Sequence[Path | Blueprint | None],
    *,
    dtype: Dtype,
    device: str,
    has_graphs: bool = False,
) -> MemoryNeed:
    """Check that the device has enough free memory for target, drafters and graphs.

    A drafter may copy its tensors while it is built, so the largest counts twice.
    """
    what = f"The stand-in of {stand_in.name}"
    context = stand_in.target.config["max_position_embeddings"]
    drafters = [made.num_numbers for made in weights if not isinstance(made, Path | None)]
    need = replace(
        estimate(stand_in.shape, dtype, context=context, what=what),
        draft_bytes=(sum(drafters) + max(drafters, default=0)) * BYTES[dtype],
        reserve_bytes=GRAPH_RESERVE if has_graphs else 0,
    )
    check_need(need, dtype, device, what=what)
    return need


def _folder_shape(card: ModelCard) -> Shape | None:
    """The shape in a folder's config.json; None if the card's model is not a folder."""
    if not Path(card.repo).is_dir():
        return None
    config = read_config(Path(card.repo), f"Model {card.name}")
    usual = {"num_key_value_heads": config.get("num_attention_heads"), "num_local_experts": 1}
    given: dict[str, Any] = {name: config.get(name) or usual.get(name) for name in _FIELDS}
    if given["head_dim"] is None:
        del given["head_dim"]  # hidden size by heads
    wrong = [name for name, n in given.items() if not isinstance(n, int) or n < 1]
    if wrong:
        raise UserError(
            f"The config.json in {card.repo} has no valid {', '.join(wrong)}.",
            "A stand-in takes its shape from a Llama-like model's config.json.",
        )
    numbers = {_FIELDS[name]: number for name, number in given.items()}
    return Shape(**numbers, architecture=str(config.get("model_type")))
