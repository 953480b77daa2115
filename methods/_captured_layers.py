"""The target layers that an EAGLE-3 head reads. Publishers name them in different ways."""

from typing import Any

from specbench.errors import UserError
from specbench.methods._head_config import LAYERS, HeadConfig
from specbench.methods._head_fields import one_value
from specbench.methods.shared.checkpoint import Checkpoint

LAYERS_HELP = "target layers whose inputs are read, such as 2+16+29; empty: the config's"
"""Help of an option `layers`, which overrides the config."""


def captured_layers(
    checkpoint: Checkpoint, head: HeadConfig, num_layers: int, chosen: str = ""
) -> tuple[int, ...]:
    """Target layers whose inputs form EAGLE-3's features, in increasing order.

    `chosen`, such as "2+16+29", overrides the config. A flat list in the config names layers by
    their inputs (0 is the first layer's input), as in vLLM. Publishers disagree on nested lists.
    For a target of n layers, the default list is [2, n // 2, n - 3]. A nested list names inputs if
    it is the default list, or if it contains n (as for gpt-oss), since outputs end at n - 1. It
    names outputs if each number is 1 less than in the default list. Other nested lists need
    `chosen`, and so do lists of outputs for gpt-oss, since SGLang #32334 reads them as inputs.
    """
    formula = [2, num_layers // 2, num_layers - 3]
    flat = head.fields.get(LAYERS)
    nested = head.nested_layers
    layers = _parse_layers(chosen) or flat
    if flat and nested and nested != _outputs_of(flat):
        one_value(checkpoint, {LAYERS: flat, f"eagle_config.{LAYERS}": nested})
    if not layers and nested:
        layers = _inputs_of_nested(checkpoint, nested, formula, num_layers)
    layers = layers or formula
    is_valid = isinstance(layers, list) and all(
        type(layer) is int and 0 <= layer <= num_layers for layer in layers
    )
    if not is_valid or len(set(layers)) < len(layers):
        raise checkpoint.error(
            f"reads the inputs of target layers {layers}, but they must be distinct and at most "
            f"{num_layers} (option layers, or {LAYERS} in its config, can name others)"
        )
    named_number = {"num_aux_hidden_states": head.fields.get("num_aux_hidden_states")}
    one_value(checkpoint, {**named_number, "the number of its target layers is": len(layers)})
    if not chosen and not head.names_layers:
        checkpoint.notes.append(
            f"Its config names no target layers, so it reads the inputs of layers {layers}, as in "
            "the official code. If few tokens are accepted, name other layers with layers=."
        )
    return tuple(sorted(layers))


def _outputs_of(layers: Any) -> list[int] | None:
    """The layers whose outputs are the inputs of `layers`, or None if `layers` is not a list."""
    if not isinstance(layers, list):
        return None
    return [layer - 1 for layer in layers if type(layer) is int]


def _inputs_of_nested(
    checkpoint: Checkpoint, nested: Any, formula: list[int], num_layers: int
) -> Any:
    """Convert a nested list to inputs (see `captured_layers`). Refuses an ambiguous list."""
    counts_outputs = nested == _outputs_of(formula)
    if counts_outputs and checkpoint.target.config.model_type != "gpt_oss":
        return formula
    if nested != formula and isinstance(nested, list) and num_layers not in nested:
        raise _ambiguous(checkpoint, nested)
    return nested


def _ambiguous(checkpoint: Checkpoint, layers: list[Any]) -> UserError:
    """The error for a list that may count inputs or outputs of layers."""
    inputs = "+".join(map(str, layers))
    outputs = "+".join(str(layer + 1) for layer in layers if isinstance(layer, int))
    error = checkpoint.error(
        f"names target layers {layers} in eagle_config.{LAYERS}, and publishers disagree on "
        "whether such a list counts inputs or outputs"
    )
    error.hint = (
        f"Name the layers by their inputs: layers={inputs} if the list does so, layers={outputs} "
        "if it names outputs (the head then accepts more tokens)."
    )
    return error


def _parse_layers(chosen: str) -> list[int]:
    """The layers in an option such as "2+16+29", or an empty list for an empty option."""
    if not chosen:
        return []
    try:
        return [int(layer) for layer in chosen.split("+")]
    except ValueError as error:
        raise UserError(
            f"layers={chosen!r} is not a list of layers.", "Write it as layers=2+16+29."
        ) from error
