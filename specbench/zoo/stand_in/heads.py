"""The stand-ins of the heads, in the official formats: Medusa, Hydra, EAGLE and EAGLE-3.

Their shapes are those of the published ones: five Medusa heads, of which the default tree uses
four (the fifth repeats tiny's last); EAGLE-3's draft vocabulary of 32000. Hydra's are the paper's
plain heads, as tiny's are: published ones differ in depth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.types import Shape
from specbench.zoo.heads.eagle3 import LAYER_IDS, feature_layers
from specbench.zoo.stand_in.blueprint import Blueprint, Matrix, Piece, Small, Table, Vector
from specbench.zoo.stand_in.fit import Fit, fit_in, read_config
from specbench.zoo.stand_in.models import decoder_layer, shape_fields
from specbench.zoo.stand_in.published import EAGLE3_DRAFT_VOCAB, NUM_MEDUSA_HEADS
from specbench.zoo.stand_in.space import joined, leading

EAGLE3_GAIN = 4096.0
"""Its outputs have a norm of 2100 to 7900 (see `plan.TARGET_GAIN`)."""


def medusa(folder: Path, fit: Fit, *, name: str, seed: int) -> Blueprint:
    """x + SiLU(W x + b) leaves silent channels and the constant as they are."""
    small = read_config(folder)
    num_heads = max(NUM_MEDUSA_HEADS, small["medusa_num_heads"])
    num_blocks = small["medusa_num_layers"]
    pieces: dict[str, Piece] = {}
    for head in range(num_heads):
        source = min(head, small["medusa_num_heads"] - 1)
        for block in range(num_blocks):
            key, source_key = f"{head}.{block}.linear", f"{source}.{block}.linear"
            pieces[f"{key}.weight"] = Matrix(fit.update, fit.stream, f"{source_key}.weight")
            pieces[f"{key}.bias"] = Vector(fit.update, f"{source_key}.bias")
        pieces[f"{head}.{num_blocks}.weight"] = fit.head(f"{source}.{num_blocks}.weight")
    config = {"medusa_num_heads": num_heads, "medusa_num_layers": num_blocks}
    return Blueprint(name, folder, config, pieces, seed)


def hydra(folder: Path, fit: Fit, *, name: str, seed: int) -> Blueprint:
    """res(x) carries the hidden state's constant to the projection."""
    config = read_config(folder)
    pieces: dict[str, Piece] = {}
    for head in range(config["hydra_num_heads"]):
        parts = [fit.stream] * (head + 2)
        first = f"hydra_mlp.{head}.0"
        linear, residual = f"{first}.linear", f"{first}.res_connection"
        pieces[f"{linear}.weight"] = Matrix(fit.update, joined(parts), f"{linear}.weight")
        pieces[f"{linear}.bias"] = Vector(fit.update, f"{linear}.bias")
        pieces[f"{residual}.weight"] = fit.carrying(f"{residual}.weight", *parts)
        pieces[f"{residual}.bias"] = Vector(fit.update, f"{residual}.bias")
        for block in range(1, config["hydra_num_layers"]):
            later = f"hydra_mlp.{head}.{block}.linear"
            pieces[f"{later}.weight"] = Matrix(fit.update, fit.stream, f"{later}.weight")
            pieces[f"{later}.bias"] = Vector(fit.update, f"{later}.bias")
        projection = f"hydra_lm_head.{head}"
        pieces[f"{projection}.weight"] = fit.head(f"{projection}.weight")
        pieces[f"{projection}.bias"] = Vector(fit.vocabulary, f"{projection}.bias")
    return Blueprint(name, folder, config, pieces, seed)


def eagle(folder: Path, big: Shape, *, name: str, seed: int) -> Blueprint:
    """fc carries the embedding's constant, which is what the layer's norm allows for.

    The target's own head reads the output, constant included. The embedding is the target's.
    """
    fit = fit_in(folder, big)
    pieces: dict[str, Piece] = {
        "fc.weight": fit.carrying("fc.weight", fit.stream, fit.stream),
        "fc.bias": Vector(fit.update, "fc.bias"),
        **decoder_layer(fit, "layers.0", "layers.0", fit.stream),
    }
    return Blueprint(name, folder, {**_layer_config(fit), "bias": True}, pieces, seed)


def eagle3(folder: Path, big: Shape, *, name: str, seed: int) -> Blueprint:
    """fc carries the constant of the first layer's input; every norm then allows for it."""
    fit, small = fit_in(folder, big), read_config(folder)
    size = min(EAGLE3_DRAFT_VOCAB, big.vocab_size)
    words = leading(small["draft_vocab_size"], size)
    layers = feature_layers(big.num_layers)
    parts = [fit.stream] * len(layers)
    pieces: dict[str, Piece] = {
        "d2t": Table((size,), lambda tensors: _offsets(tensors, size, big.vocab_size)),
        "fc.weight": fit.carrying("fc.weight", *parts),
        "midlayer.input_layernorm.weight": fit.norm("midlayer.input_layernorm.weight"),
        "midlayer.hidden_norm.weight": fit.norm("midlayer.hidden_norm.weight"),
        **decoder_layer(fit, "midlayer", "midlayer", joined([fit.update, fit.update])),
        "norm.weight": fit.norm("norm.weight", EAGLE3_GAIN),
        "lm_head.weight": fit.head("lm_head.weight", words),
    }
    config = {**_layer_config(fit), "draft_vocab_size": size, LAYER_IDS: list(layers)}
    return Blueprint(name, folder, config, pieces, seed)


def _layer_config(fit: Fit) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        **shape_fields(fit),
        "rope_theta": fit.rope_theta,
    }


def _offsets(small: Small, size: int, vocab_size: int) -> Tensor:
    """d2t [size]: the small draft vocabulary's tokens, then the first ones that are left."""
    known = small["d2t"].long()
    known = known + torch.arange(known.shape[0])
    is_left = torch.ones(vocab_size, dtype=torch.bool)
    is_left[known] = False
    ids = torch.cat([known, is_left.nonzero()[:, 0]])[:size]
    return ids - torch.arange(size)
