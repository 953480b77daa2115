"""Plan the stand-in of a model. It is tiny, enlarged to the shape in the model's card or
config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError
from specbench.models.cards import ModelCard, models_file
from specbench.models.checkpoints import read_config
from specbench.types import CONFIG_NAMES, Shape

if TYPE_CHECKING:
    from specbench.zoo.stand_in.plan import StandIn

_DRAFT_MODEL = "sps"
"""The method whose checkpoint on a model card gives the shape of a stand-in's draft model."""
_FIELDS = {name: field for field, name in CONFIG_NAMES.items()}
_FIELDS["num_local_experts"] = "num_experts"
"""Fields of a shape, by their names in config.json."""


def stand_in_of(card: ModelCard) -> StandIn:
    """The stand-in of a card's model.

    It is a plan to make weights of the model's shape from the weights of tiny, the model that ships
    with specbench: for the model, for the heads of Medusa, Hydra, EAGLE and EAGLE-3, and for the
    SpS draft model if the card has one with a known shape.

    Raises:
        UserError: the model is tiny itself, or a shape is unknown, not Llama-like, or cannot hold
            tiny's weights.
    """
    from specbench.zoo.stand_in.plan import plan_stand_in

    shape = card.shape  # the sizes of the model; None if the card does not have them
    if shape is None and not card.is_embedded:  # the embedded model is tiny; its card has no shape
        shape = _folder_shape(card)
    if shape is None:
        reason = "stand-ins are made from it" if card.is_embedded else "its shape is unknown"
        raise UserError(
            f"{card.name} has no stand-in: {reason}.",
            "Give a folder with the model's config.json, or a Llama-like model of `specbench list "
            "models`.",
        )
    draft_model = card.weights_of(_DRAFT_MODEL)  # the SpS checkpoint on the card; None without one
    # The shape of the draft model, if its repository is known; else None.
    draft_shape = models_file().draft_shape.get(draft_model.repo) if draft_model else None
    return plan_stand_in(card.name, shape, draft_shape)


def _folder_shape(card: ModelCard) -> Shape | None:
    """The shape of a card's model from its config.json, or None if the model is not a local folder.

    A shape has the sizes of a model, such as the number of layers.

    Raises:
        UserError: a size is missing, or is not a number above 0.
    """
    if not Path(card.repo).is_dir():
        return None
    config = read_config(Path(card.repo), f"Model {card.name}")
    # The sizes that a config.json may leave out.
    defaults = {"num_key_value_heads": config.get("num_attention_heads"), "num_local_experts": 1}
    # The sizes by their names in config.json; None for a size that is missing.
    sizes: dict[str, Any] = {name: config.get(name) or defaults.get(name) for name in _FIELDS}
    if sizes["head_dim"] is None:
        del sizes["head_dim"]  # `Shape` then divides the hidden size by the number of heads
    invalid_names = [name for name, size in sizes.items() if not isinstance(size, int) or size < 1]
    if invalid_names:
        raise UserError(
            f"The config.json in {card.repo} has no valid {', '.join(invalid_names)}.",
            "A stand-in takes its shape from a Llama-like model's config.json.",
        )
    sizes_by_field = {_FIELDS[name]: size for name, size in sizes.items()}
    return Shape(**sizes_by_field, architecture=str(config.get("model_type")))
