"""The stand-ins of a target and of its drafters, in the official formats.

The heads have the shapes of the published ones: five Medusa heads, of which the default tree
uses four (the fifth repeats tiny's last); EAGLE-3's draft vocabulary of 32000. Hydra's are the
paper's plain heads, as tiny's are: published ones differ in depth.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.types import Shape
from specbench.zoo.heads import (
    CONFIG_KEY,
    EAGLE3_DRAFT_VOCAB,
    NUM_MEDUSA_HEADS,
    feature_layers,
)
from specbench.zoo.stand_in.blueprint import (
    Blueprint,
    Channels,
    Piece,
    Pieces,
    Small,
    concat,
    leading,
    linear,
    matrix,
    vector,
)
from specbench.zoo.stand_in.placement import Placement, place, read_config

TARGET_GAIN, SPS_GAIN, EAGLE3_GAIN = 1024.0, 1.0, 4096.0
"""The constant after the last norm times the norm of what enters it, which is 320 to 3700 in
tiny, 0.6 to 2.7 in its draft model and 2100 to 7900 in EAGLE-3's head: the added vocabulary's
logits are then -1000 to -50000."""


def language_model(
    folder: Path, big: Shape, *, name: str, gain: float, taps: Sequence[Sequence[int]], seed: int
) -> Blueprint:
    """The model of a folder in another shape.

    `taps` are pairs (small layer, big layer) whose inputs have to agree. `gain` scales the
    constant after the last norm.
    """
    placement = place(folder, big)
    pieces = {"model.embed_tokens.weight": placement.embedding("model.embed_tokens.weight")}
    sources = spread_layers(placement.small.num_layers, big.num_layers, taps)
    for index, number in enumerate(sources):
        layer = f"model.layers.{index}"
        source = None if number is None else f"model.layers.{number}"
        norm = placement.norm(_key(source, "input_layernorm"))
        pieces[f"{layer}.input_layernorm.weight"] = norm
        pieces |= _decoder_layer(placement, layer, source, placement.update)
        if big.architecture == "qwen2":
            inner = placement.layer(is_added=source is None)
            biases = {"q_proj": inner.queries, "k_proj": inner.keys, "v_proj": inner.values}
            for part, channels in biases.items():
                pieces[f"{layer}.self_attn.{part}.bias"] = vector(channels)
    pieces["model.norm.weight"] = placement.norm("model.norm.weight", gain)
    pieces["lm_head.weight"] = placement.head("lm_head.weight")
    return Blueprint(name, folder, _config(placement, folder), pieces, seed)


def spread_layers(
    num_small: int, num_big: int, taps: Sequence[Sequence[int]] = ()
) -> list[int | None]:
    """The small layer in the place of each big one, None for an added layer.

    The inputs of tapped layers agree: as many small layers are before them as in the small model.
    """
    layers: list[int | None] = [None] * num_big
    for (small, big), (next_small, next_big) in pairwise([(0, 0), *taps, (num_small, num_big)]):
        if next_small - small > next_big - big:
            raise ValueError(f"{num_small} layers do not fit into {num_big} at {taps}")
        layers[big : big + next_small - small] = range(small, next_small)
    return layers


def medusa(folder: Path, target: Placement, *, name: str, seed: int) -> Blueprint:
    """x + SiLU(W x + b) leaves silent channels and the constant as they are."""
    num_small = read_config(folder)["medusa_num_heads"]
    pieces: Pieces = {}
    for head in range(NUM_MEDUSA_HEADS):
        source = min(head, num_small - 1)
        pieces |= linear(f"{head}.0.linear", target.update, target.stream, f"{source}.0.linear")
        pieces[f"{head}.1.weight"] = target.head(f"{source}.1.weight")
    config = {"medusa_num_heads": NUM_MEDUSA_HEADS, "medusa_num_layers": 1}
    return Blueprint(name, folder, config, pieces, seed)


def hydra(folder: Path, target: Placement, *, name: str, seed: int) -> Blueprint:
    """res(x) carries the hidden state's constant to the projection."""
    config = read_config(folder)
    update, stream = target.update, target.stream
    pieces: Pieces = {}
    for head in range(config["hydra_num_heads"]):
        parts, first = [stream] * (head + 2), f"hydra_mlp.{head}.0"
        residual, projection = f"{first}.res_connection", f"hydra_lm_head.{head}"
        pieces |= linear(f"{first}.linear", update, concat(parts))
        pieces[f"{residual}.weight"] = target.to_stream(f"{residual}.weight", *parts)
        pieces[f"{residual}.bias"] = vector(update, f"{residual}.bias")
        pieces[f"{projection}.weight"] = target.head(f"{projection}.weight")
        pieces[f"{projection}.bias"] = vector(target.vocabulary, f"{projection}.bias")
    return Blueprint(name, folder, config, pieces, seed)


def eagle(folder: Path, big: Shape, *, name: str, seed: int) -> Blueprint:
    """fc carries the embedding's constant, which is what the layer's norm allows for.

    The target's own head reads the output, constant included. The embedding is the target's.
    """
    placement = place(folder, big)
    pieces: Pieces = {
        "fc.weight": placement.to_stream("fc.weight", placement.stream, placement.stream),
        "fc.bias": vector(placement.update, "fc.bias"),
        **_decoder_layer(placement, "layers.0", "layers.0", placement.stream),
    }
    return Blueprint(name, folder, {**_layer_config(placement), "bias": True}, pieces, seed)


def eagle3(folder: Path, big: Shape, *, name: str, seed: int) -> Blueprint:
    """fc carries the constant of the first layer's input; every norm then allows for it."""
    placement, small = place(folder, big), read_config(folder)
    size = min(EAGLE3_DRAFT_VOCAB, big.vocab_size)
    layers = feature_layers(big.num_layers)
    tokens = leading(small["draft_vocab_size"], size)
    inputs = concat([placement.update, placement.update])
    norms = ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight")
    pieces: Pieces = {
        "d2t": Piece((size,), lambda draw, tensors: _offsets(tensors, size, big.vocab_size)),
        "fc.weight": placement.to_stream("fc.weight", *[placement.stream] * len(layers)),
        **{norm: placement.norm(norm) for norm in norms},
        **_decoder_layer(placement, "midlayer", "midlayer", inputs),
        "norm.weight": placement.norm("norm.weight", EAGLE3_GAIN),
        "lm_head.weight": placement.head("lm_head.weight", tokens),
    }
    fields = {"draft_vocab_size": size, CONFIG_KEY: list(layers)}
    return Blueprint(name, folder, _layer_config(placement) | fields, pieces, seed)


def _decoder_layer(
    placement: Placement, name: str, source: str | None, attention_input: Channels
) -> Pieces:
    """A layer without its input norm. `source` is the small model's, None for an added layer."""
    inner = placement.layer(is_added=source is None)
    update = placement.update
    projections = {
        "self_attn.q_proj": (inner.queries, attention_input, placement.query_scale),
        "self_attn.k_proj": (inner.keys, attention_input, 1.0),
        "self_attn.v_proj": (inner.values, attention_input, 1.0),
        "self_attn.o_proj": (update, inner.attended, 1.0),
        "mlp.gate_proj": (inner.gates, update, 1.0),
        "mlp.up_proj": (inner.neurons, update, 1.0),
        "mlp.down_proj": (update, inner.neurons, 1.0),
    }
    pieces = {
        f"{name}.{part}.weight": matrix(out, into, _key(source, part), scale=scale)
        for part, (out, into, scale) in projections.items()
    }
    norm = "post_attention_layernorm"
    return pieces | {f"{name}.{norm}.weight": placement.norm(_key(source, norm))}


def _key(source: str | None, part: str) -> str | None:
    return None if source is None else f"{source}.{part}.weight"


def _shape_fields(placement: Placement) -> dict[str, Any]:
    """The sizes of a model, as a config holds them."""
    return {
        **placement.big.config,
        "hidden_act": "silu",
        "rms_norm_eps": placement.big_eps,
        "max_position_embeddings": placement.small.context,
    }


def _config(placement: Placement, folder: Path) -> dict[str, Any]:
    big, small = placement.big, read_config(folder)
    return {
        "model_type": big.architecture,
        **_shape_fields(placement),
        "rope_parameters": {"rope_type": "default", "rope_theta": placement.rope_theta},
        "tie_word_embeddings": False,
        **({} if big.architecture == "llama" else {"sliding_window": None}),
        **{key: small[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }


def _layer_config(placement: Placement) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_shape_fields(placement),
        "num_hidden_layers": 1,
        "rope_theta": placement.rope_theta,
    }


def _offsets(small: Small, size: int, vocab_size: int) -> Tensor:
    """d2t [size]: the small draft vocabulary's tokens, then the first ones that are left."""
    known = small["d2t"].long()
    known = known + torch.arange(known.shape[0])
    is_left = torch.ones(vocab_size, dtype=torch.bool)
    is_left[known] = False
    ids = torch.cat([known, is_left.nonzero()[:, 0]])[:size]
    return ids - torch.arange(size)
