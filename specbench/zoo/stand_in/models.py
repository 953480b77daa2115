"""The stand-ins of a target and of its drafters, in the official formats.

The heads have the shapes of published heads: EAGLE-3's draft vocabulary has 32000 tokens, and
Medusa has five heads. The fifth repeats tiny's last, and the default tree uses only four. Hydra's
heads are the paper's plain heads, like tiny's, since published heads differ in depth.
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
    noise,
    of_experts,
    vector,
)
from specbench.zoo.stand_in.placement import LayerChannels, Placement, place, read_config

# The gains g of the last norms, whose input is x (see the package's docstring). They make the
# added vocabulary's logits -1000 to -50000.
TARGET_GAIN = 1024.0
"""In tiny, |x| is 320 to 3700."""
SPS_GAIN = 1.0
"""In tiny's draft model, |x| is 0.6 to 2.7."""
EAGLE3_GAIN = 4096.0
"""In the head, |x| is 2100 to 7900."""
CHOSEN_EXPERTS = 2
"""The number of experts that a token chooses if there are several, as in Mixtral."""


def language_model(
    folder: Path, big: Shape, *, name: str, gain: float, taps: Sequence[Sequence[int]], seed: int
) -> Blueprint:
    """Put the model of a folder into another shape.

    `taps` are pairs (small layer, big layer) whose inputs have to agree. `gain` scales the
    constant after the last norm.
    """
    placement = place(folder, big)
    pieces = {"model.embed_tokens.weight": placement.embedding("model.embed_tokens.weight")}
    sources = spread_layers(placement.small.num_layers, big.num_layers, taps)
    for index, small_index in enumerate(sources):
        layer = f"model.layers.{index}"
        source = None if small_index is None else f"model.layers.{small_index}"
        norm = placement.norm(_key(source, "input_layernorm"))
        pieces[f"{layer}.input_layernorm.weight"] = norm
        pieces |= _decoder_layer(placement, layer, source, placement.update, big.num_experts)
        if big.architecture == "qwen2":
            inner = placement.layer(is_added=source is None)
            biases = {"q_proj": inner.queries, "k_proj": inner.keys, "v_proj": inner.values}
            pieces |= {
                f"{layer}.self_attn.{projection}.bias": vector(channels)
                for projection, channels in biases.items()
            }
    pieces["model.norm.weight"] = placement.norm("model.norm.weight", gain)
    pieces["lm_head.weight"] = placement.head("lm_head.weight")
    return Blueprint(name, folder, _config(placement, folder), pieces, seed)


def spread_layers(
    num_small: int, num_big: int, taps: Sequence[Sequence[int]] = ()
) -> list[int | None]:
    """Return for each big layer the small layer in its place, or None for an added layer.

    `taps` are pairs (small layer, big layer) that must have the same inputs. So the same small
    layers come before both.
    """
    layers: list[int | None] = [None] * num_big
    ends = [(0, 0), *taps, (num_small, num_big)]
    for (small, big), (next_small, _) in pairwise(ends):
        num_between = next_small - small
        layers[big : big + num_between] = range(small, next_small)
    return layers


def medusa(folder: Path, target: Placement, *, name: str, seed: int) -> Blueprint:
    """Make Medusa's heads. x + SiLU(W x + b) keeps silent channels and the constant unchanged."""
    num_small = read_config(folder)["medusa_num_heads"]
    pieces: Pieces = {}
    for head in range(NUM_MEDUSA_HEADS):
        source = min(head, num_small - 1)
        pieces |= linear(f"{head}.0.linear", target.update, target.stream, f"{source}.0.linear")
        pieces[f"{head}.1.weight"] = target.head(f"{source}.1.weight")
    config = {"medusa_num_heads": NUM_MEDUSA_HEADS, "medusa_num_layers": 1}
    return Blueprint(name, folder, config, pieces, seed)


def hydra(folder: Path, target: Placement, *, name: str, seed: int) -> Blueprint:
    """Make Hydra's heads. res(x) carries the hidden state's constant to the projection."""
    config = read_config(folder)
    update = target.update
    pieces: Pieces = {}
    for head in range(config["hydra_num_heads"]):
        inputs = [target.stream] * (head + 2)  # the hidden state, and the tokens drafted before
        block = f"hydra_mlp.{head}.0"
        residual = f"{block}.res_connection"
        projection = f"hydra_lm_head.{head}"
        pieces |= linear(f"{block}.linear", update, concat(inputs))
        pieces[f"{residual}.weight"] = target.to_stream(f"{residual}.weight", *inputs)
        pieces[f"{residual}.bias"] = vector(update, f"{residual}.bias")
        pieces[f"{projection}.weight"] = target.head(f"{projection}.weight")
        pieces[f"{projection}.bias"] = vector(target.vocabulary, f"{projection}.bias")
    return Blueprint(name, folder, config, pieces, seed)


def eagle(folder: Path, big: Shape, *, name: str, seed: int) -> Blueprint:
    """Make EAGLE's head. fc carries the embedding's constant, which the layer's norm corrects for.

    The target's head reads the output, including the constant. The embedding is the target's.
    """
    placement = place(folder, big)
    stream = placement.stream
    pieces: Pieces = {
        "fc.weight": placement.to_stream("fc.weight", stream, stream),
        "fc.bias": vector(placement.update, "fc.bias"),
        **_decoder_layer(placement, "layers.0", "layers.0", stream),
    }
    config = {**_layer_config(placement), "bias": True}
    return Blueprint(name, folder, config, pieces, seed)


def eagle3(folder: Path, big: Shape, *, name: str, seed: int) -> Blueprint:
    """Make EAGLE-3's head. fc carries its first input's constant, for which norms correct."""
    placement = place(folder, big)
    small_config = read_config(folder)
    vocab_size = min(EAGLE3_DRAFT_VOCAB, big.vocab_size)
    layers = feature_layers(big.num_layers)
    tokens = leading(small_config["draft_vocab_size"], vocab_size)
    features = [placement.stream] * len(layers)
    attention_input = concat([placement.update, placement.update])
    input_norm = "midlayer.input_layernorm.weight"
    hidden_norm = "midlayer.hidden_norm.weight"

    offsets = Piece((vocab_size,), lambda draw, small: _offsets(small, vocab_size, big.vocab_size))
    pieces: Pieces = {
        "d2t": offsets,
        "fc.weight": placement.to_stream("fc.weight", *features),
        input_norm: placement.norm(input_norm),
        hidden_norm: placement.norm(hidden_norm),
        **_decoder_layer(placement, "midlayer", "midlayer", attention_input),
        "norm.weight": placement.norm("norm.weight", EAGLE3_GAIN),
        "lm_head.weight": placement.head("lm_head.weight", tokens),
    }
    config = {
        **_layer_config(placement),
        "draft_vocab_size": vocab_size,
        CONFIG_KEY: list(layers),
    }
    return Blueprint(name, folder, config, pieces, seed)


def _decoder_layer(
    placement: Placement,
    name: str,
    source: str | None,
    attention_input: Channels,
    num_experts: int = 1,
) -> Pieces:
    """Make a layer without its input norm. `source` is the small layer's name, if any."""
    inner = placement.layer(is_added=source is None)
    update = placement.update
    attention = source and f"{source}.self_attn"
    queries = matrix(
        inner.queries, attention_input, _key(attention, "q_proj"), scale=placement.query_scale
    )
    norm = "post_attention_layernorm"
    return {
        f"{name}.self_attn.q_proj.weight": queries,
        f"{name}.self_attn.k_proj.weight": matrix(
            inner.keys, attention_input, _key(attention, "k_proj")
        ),
        f"{name}.self_attn.v_proj.weight": matrix(
            inner.values, attention_input, _key(attention, "v_proj")
        ),
        f"{name}.self_attn.o_proj.weight": matrix(
            update, inner.attended, _key(attention, "o_proj")
        ),
        **_mlp(inner, update, f"{name}.mlp", source and f"{source}.mlp", num_experts),
        f"{name}.{norm}.weight": placement.norm(_key(source, norm)),
    }


def _mlp(
    inner: LayerChannels, update: Channels, name: str, source: str | None, num_experts: int
) -> Pieces:
    """Make the MLP of a layer. Each of several experts holds the small MLP and different noise.

    The router is noise. The weights of the experts that it chooses add up to one, so any choice
    gives the small MLP's output.
    """
    gate = matrix(inner.gates, update, _key(source, "gate_proj"))
    up = matrix(inner.neurons, update, _key(source, "up_proj"))
    down = matrix(update, inner.neurons, _key(source, "down_proj"))
    if num_experts == 1:
        projections = {"gate_proj": gate, "up_proj": up, "down_proj": down}
        return {f"{name}.{module}.weight": piece for module, piece in projections.items()}
    return {
        f"{name}.gate.weight": noise(num_experts, update.size),
        f"{name}.experts.gate_up_proj": of_experts(num_experts, gate, up),
        f"{name}.experts.down_proj": of_experts(num_experts, down),
    }


def _key(source: str | None, module: str) -> str | None:
    """Return the name of a module's weight in the small model, or None for an added layer."""
    return None if source is None else f"{source}.{module}.weight"


def _shape_fields(placement: Placement) -> dict[str, Any]:
    """Return the sizes of a model as fields of a config."""
    return {
        **placement.big.config,
        "hidden_act": "silu",
        "rms_norm_eps": placement.big_eps,
        "max_position_embeddings": placement.small.context,
    }


def _config(placement: Placement, folder: Path) -> dict[str, Any]:
    """Return a language model's config.json, with the special tokens of the model in `folder`."""
    architecture = placement.big.architecture
    config = {
        "model_type": architecture,
        **_shape_fields(placement),
        "rope_parameters": {"rope_type": "default", "rope_theta": placement.rope_theta},
        "tie_word_embeddings": False,
    }
    if architecture != "llama":
        config["sliding_window"] = None
    if (num_experts := placement.big.num_experts) > 1:
        config |= {"num_local_experts": num_experts, "num_experts_per_tok": CHOSEN_EXPERTS}
    small_config = read_config(folder)
    special_tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    return config | {key: small_config[key] for key in special_tokens}


def _layer_config(placement: Placement) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_shape_fields(placement),
        "num_hidden_layers": 1,
        "rope_theta": placement.rope_theta,
    }


def _offsets(small: Small, size: int, vocab_size: int) -> Tensor:
    """Return d2t [size]: the small draft vocabulary, then the first tokens that it lacks."""
    small_offsets = small["d2t"].long()
    small_ids = small_offsets + torch.arange(small_offsets.shape[0])
    is_left = torch.ones(vocab_size, dtype=torch.bool)
    is_left[small_ids] = False
    ids = torch.cat([small_ids, is_left.nonzero()[:, 0]])[:size]
    return ids - torch.arange(size)
