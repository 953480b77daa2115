"""Fields of an EAGLE head's config that change its arithmetic: honoured, or refused by name.

Knows configs, not tensors.
"""

from typing import Any

from specbench.errors import UserError
from specbench.methods._checkpoint import Checkpoint

NESTED = "eagle_config"
LAYERS = "eagle_aux_hidden_state_layer_ids"

_COMPUTED: dict[str, Any] = {
    "norm_output": False,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1,
    "parallel_draft_step": 1,
    "next_layer_regular": True,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
"""The values that the draft models compute. Publishers write them flat or nested."""


def check_fields(checkpoint: Checkpoint, fields: dict[str, Any]) -> None:
    """Refuse a config that asks for other arithmetic, by the field's name."""
    nested, rope = nested_fields(checkpoint, fields), fields.get("rope_parameters") or {}
    if unknown := sorted(nested.keys() - _COMPUTED.keys() - {LAYERS}):
        raise checkpoint.error(f"has {NESTED}.{unknown[0]}, which is not supported")
    for prefix, values in (("", fields), (f"{NESTED}.", nested), ("rope_parameters.", rope)):
        for key in sorted(values.keys() & _COMPUTED.keys()):
            if values[key] not in (None, _COMPUTED[key]):
                raise checkpoint.error(f"has {prefix}{key} {values[key]!r}, which is not supported")
    kinds = set(fields.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise checkpoint.error(f"has layer_types {sorted(kinds)}, which are not supported")


def nested_fields(checkpoint: Checkpoint, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that some publishers nest."""
    nested = fields.get(NESTED) or {}
    if not isinstance(nested, dict):
        raise checkpoint.error(f"has a config whose {NESTED} is not a JSON object")
    return nested


def captured_layers(
    checkpoint: Checkpoint, fields: dict[str, Any], num_layers: int, chosen: str = ""
) -> tuple[int, ...]:
    """Target layers whose inputs form EAGLE-3's features, in increasing order.

    `chosen`, such as "2+16+29", overrides the config. A flat list in the config counts inputs of
    layers (0 is the first layer's), as in vLLM. Publishers of nested ones disagree: a list of the
    formula's layers counts as the formula does, by inputs or by outputs; others need `chosen`.
    """
    formula = [2, num_layers // 2, num_layers - 3]
    nested = nested_fields(checkpoint, fields).get(LAYERS)
    layers = _parsed(chosen) or fields.get(LAYERS)
    if not layers and nested:
        layers = nested
        if nested == [layer - 1 for layer in formula]:
            layers = formula
        elif nested != formula and isinstance(nested, list):
            raise _ambiguous(checkpoint, nested)
    layers = layers or formula
    is_valid = isinstance(layers, list) and all(
        isinstance(layer, int) and 0 <= layer < num_layers for layer in layers
    )
    if not is_valid or len(set(layers)) < len(layers):
        raise checkpoint.error(
            f"reads the inputs of target layers {layers}, but they must be distinct and below "
            f"{num_layers} (option layers, or {LAYERS} in its config, can name others)"
        )
    return tuple(sorted(layers))


def _ambiguous(checkpoint: Checkpoint, layers: list[Any]) -> UserError:
    inputs = "+".join(map(str, layers))
    outputs = "+".join(str(layer + 1) for layer in layers if isinstance(layer, int))
    error = checkpoint.error(
        f"names target layers {layers} in {NESTED}.{LAYERS}, and publishers disagree whether "
        "such a list counts inputs or outputs"
    )
    error.hint = (
        f"Name the layers by their inputs: layers={inputs} if the list does so, layers={outputs} "
        "if it names outputs (the head then accepts more tokens)."
    )
    return error


def _parsed(chosen: str) -> list[int]:
    try:
        return [int(layer) for layer in chosen.split("+")] if chosen else []
    except ValueError as error:
        raise UserError(
            f"layers={chosen!r} is not a list of layers.", "Write it like layers=2+16+29."
        ) from error
