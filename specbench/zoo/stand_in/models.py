"""The stand-ins of whole models: a target, and the draft model of SpS."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from specbench.types import Shape
from specbench.zoo.stand_in.blueprint import Blueprint, Matrix, Piece, Vector
from specbench.zoo.stand_in.fit import Fit, fit_in, read_config
from specbench.zoo.stand_in.space import Space

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def decoder_layer(fit: Fit, name: str, small: str | None, attends: Space) -> dict[str, Piece]:
    """A layer without its input norm; `attends` is what its attention reads. None: an added one."""
    inside = fit.inside(is_added=small is None)
    attention, norm, mlp = "self_attn", "post_attention_layernorm", "mlp"
    projections: dict[str, tuple[Space, Space, float]] = {
        f"{attention}.q_proj": (inside.queries, attends, fit.query_scale),
        f"{attention}.k_proj": (inside.keys, attends, 1.0),
        f"{attention}.v_proj": (inside.values, attends, 1.0),
        f"{attention}.o_proj": (fit.update, inside.attended, 1.0),
        f"{mlp}.gate_proj": (inside.gates, fit.update, 1.0),
        f"{mlp}.up_proj": (inside.neurons, fit.update, 1.0),
        f"{mlp}.down_proj": (fit.update, inside.neurons, 1.0),
    }

    def key(part: str) -> str | None:
        return None if small is None else f"{small}.{part}.weight"

    pieces: dict[str, Piece] = {
        f"{name}.{part}.weight": Matrix(out, into, key(part), scale)
        for part, (out, into, scale) in projections.items()
    }
    pieces[f"{name}.{norm}.weight"] = fit.norm(key(norm))
    return pieces


def language_model(
    folder: Path, big: Shape, *, name: str, gain: float, taps: Sequence[Sequence[int]], seed: int
) -> Blueprint:
    """The model of a folder in another shape.

    `taps` are pairs (small layer, big layer) whose inputs have to agree. `gain` scales the constant
    behind the last norm.
    """
    fit = fit_in(folder, big)
    places = place_layers(fit.small.num_layers, big.num_layers, taps)
    inner = (fit.inside(), fit.inside(is_added=True))
    pieces: dict[str, Piece] = {
        "model.embed_tokens.weight": fit.embedding("model.embed_tokens.weight")
    }
    for index, place in enumerate(places):
        layer = f"model.layers.{index}"
        small = None if place is None else f"model.layers.{place}"
        norm = None if small is None else f"{small}.input_layernorm.weight"
        pieces[f"{layer}.input_layernorm.weight"] = fit.norm(norm)
        pieces |= decoder_layer(fit, layer, small, fit.update)
        if big.architecture == "qwen2":  # whose projections have biases
            spaces = inner[place is None]
            for part, space in zip(
                PROJECTIONS, (spaces.queries, spaces.keys, spaces.values), strict=True
            ):
                pieces[f"{layer}.self_attn.{part}.bias"] = Vector(space)
    pieces["model.norm.weight"] = fit.norm("model.norm.weight", gain)
    pieces["lm_head.weight"] = fit.head("lm_head.weight")
    return Blueprint(name, folder, _config(fit, folder), pieces, seed)


def place_layers(
    num_small: int, num_big: int, taps: Sequence[Sequence[int]] = ()
) -> list[int | None]:
    """The small layer at each big one's place, None for an added layer.

    The inputs of tapped layers agree: as many small layers stand before them as in the small model.
    """
    places: list[int | None] = [None] * num_big
    for (small, big), (next_small, next_big) in pairwise([(0, 0), *taps, (num_small, num_big)]):
        if next_small - small > next_big - big:
            raise ValueError(f"{num_small} layers do not fit into {num_big} at {taps}")
        places[big : big + next_small - small] = range(small, next_small)
    return places


def shape_fields(fit: Fit) -> dict[str, Any]:
    """The sizes of a layer, as a config holds them."""
    big = fit.big
    return {
        "hidden_size": big.hidden_size,
        "intermediate_size": big.intermediate_size,
        "num_attention_heads": big.num_heads,
        "num_key_value_heads": big.num_kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": fit.big_eps,
        "max_position_embeddings": fit.small.context,
        "vocab_size": big.vocab_size,
    }


def _config(fit: Fit, folder: Path) -> dict[str, Any]:
    small = read_config(folder)
    rope = {"rope_type": "default", "rope_theta": fit.rope_theta}
    window = {} if fit.big.architecture == "llama" else {"sliding_window": None}
    return {
        "model_type": fit.big.architecture,
        **shape_fields(fit),
        "num_hidden_layers": fit.big.num_layers,
        "head_dim": fit.big.head_dim,
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        **window,
        **{key: small[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
