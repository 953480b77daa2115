"""Compare a GGUF file with the model that transformers makes of it.

transformers reads the metadata and tensors that its tables name, and skips the others.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
"""Names that configs use for the epsilon of norms."""
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""Architecture -> number of layers by which llama.cpp recognises its 27B model."""
_SCALE = "query_pre_attn_scalar (attention scale ** -2)"
_UNUSED_TENSORS = ("attn_rot_embd",)
"""Parts of the names of tensors that llama.cpp also skips."""
_ALLOWED_GAP = 1e-3
"""Numbers are equal up to this relative difference, since files store them in float32."""


class Difference(NamedTuple):
    """A property of the file that the loaded model does not have."""

    key: str
    in_file: object
    loaded: object


def differences(
    architecture: str, fields: Mapping[str, Any], config: Any, model: Any
) -> Iterator[Difference]:
    """Yield the metadata of a file that differ from the loaded config or rotary embeddings.

    `fields` are the file's fields without the prefix of the architecture. Only fields that exist
    are compared.
    """
    loaded = _loaded(config, model)
    fields = dict(fields)
    if architecture in _LAYERS_OF_27B:
        fields[_SCALE] = _inverse_square_of_scale(architecture, fields, config)
    for key in fields.keys() & loaded.keys():
        in_file = fields[key]
        if key == "attention.sliding_window" and in_file >= config.max_position_embeddings:
            in_file = 0  # such a window limits nothing
        if key == "attention.sliding_window_pattern":
            in_file = _is_sliding(in_file, config.num_hidden_layers)
        if not _is_equal(in_file, loaded[key]):
            yield Difference(key, in_file, loaded[key])


def _loaded(config: Any, model: Any) -> dict[str, Any]:
    """Return the loaded values by the keys of a file, without keys that the model does not use."""
    from specbench.engine.layers.config_fields import declared
    from specbench.engine.layers.torch_attention import SLIDING, attention_kinds

    head_dim = None
    if not getattr(config, "is_heterogeneous", False):  # Gemma 4's layers differ in size
        head_dim = declared(config, "head_dim") or config.hidden_size // config.num_attention_heads
    epsilon = next((declared(config, name) for name in _EPSILONS if declared(config, name)), None)
    layer_types = declared(config, "layer_types")
    loaded = {
        "attention.causal": True,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_epsilon": epsilon,
        "attention.layer_norm_rms_epsilon": epsilon,
        "attention.sliding_window": attention_kinds(config).get(SLIDING) or 0,
        "attention.sliding_window_pattern": layer_types
        and [kind == SLIDING for kind in layer_types],
        _SCALE: declared(config, "query_pre_attn_scalar"),
        "attn_logit_softcapping": declared(config, "attn_logit_softcapping") or 0,
        "final_logit_softcapping": declared(config, "final_logit_softcapping") or 0,
    }
    for name, buffer in model.named_buffers():
        kind, is_rotary, _ = name.rsplit(".")[-1].rpartition("inv_freq")
        if is_rotary and "original" not in kind:
            suffix = "_swa" if kind.startswith("sliding") else ""
            loaded[f"rope.dimension_count{suffix}"] = num_rotated = 2 * len(buffer)
            if num_rotated > 2:  # the second frequency is base ** (-2 / n); the last may be 0
                base = float(buffer[1]) ** -len(buffer)
                loaded[f"rope.freq_base{suffix}"] = float(f"{base:.5g}")
    return {key: setting for key, setting in loaded.items() if setting is not None}


def _inverse_square_of_scale(architecture: str, fields: Mapping[str, Any], config: Any) -> float:
    """Return scale ** -2 for Gemma's attention in llama.cpp. Files do not state the scale."""
    is_27b = fields.get("block_count") == _LAYERS_OF_27B[architecture]
    width: float = config.hidden_size / config.num_attention_heads
    return width if is_27b else fields.get("attention.key_length", width)


def _is_sliding(pattern: Any, num_layers: int) -> list[bool]:
    """Return True for each layer that has a window, and False for the others.

    If `pattern` is a list, it has these values. If it is a number n, every layer has a window
    except each n-th (for 0, all have one).
    """
    if isinstance(pattern, list):
        return [bool(is_sliding) for is_sliding in pattern]
    return [pattern == 0 or (layer + 1) % pattern != 0 for layer in range(num_layers)]


def _is_equal(in_file: Any, loaded: Any) -> bool:
    if isinstance(in_file, list) and isinstance(loaded, list):
        return in_file == loaded
    numbers = in_file if isinstance(in_file, list) else [in_file]  # a list has one per layer
    return all(math.isclose(number, loaded, rel_tol=_ALLOWED_GAP) for number in numbers)


def scales_rotary(fields: Mapping[str, Any]) -> bool:
    """Return True if the file scales its rotary embedding, which transformers does not read."""
    kind = fields.get("rope.scaling.type")
    factors = [fields.get(f"rope.{key}", 0) for key in ("scaling.factor", "scale_linear")]
    is_scaled = kind is None and any(factor not in (0, 1) for factor in factors)
    return is_scaled or kind not in (None, "none") or fields.get("rope.scaling.attn_factor", 1) != 1


def unread_tensors(architecture: str, names: list[str], model: Any) -> list[str]:
    """Return the tensors of the file that have no place in the model. transformers skips them."""
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    read = get_gguf_hf_weights_map(model, processor)
    return [
        name
        for name in names
        if name not in read
        and name.removesuffix(".weight") not in read  # the name of joined experts
        and not any(part in name for part in _UNUSED_TENSORS)
    ]
