"""A head of every published layout drafts as its definition does, or is refused by key."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.target import Target
from specbench.errors import CheckpointError
from tests.methods.building import build_in
from tests.methods.checkpoints import IDS, Tensors, eagle, medusa, write
from tests.methods.head_layouts import (
    FLAT,
    LAYER_IDS,
    LAYOUTS,
    Layout,
    make_head,
    speculators,
    write_layout,
)
from tests.methods.plain_eagle3 import PlainHead, layer_inputs
from tests.support.models import prompts, random_target
from tests.support.refusals import error_with
from tests.training.head_models import started

CHAIN = {"top_k": 1, "depth": 4, "total_tokens": 6}
"""Options of a tree that is one chain of five draft tokens."""


@cache
def target() -> Target:
    return random_target(layers=8)


def layer_ids(layout: Layout) -> tuple[int, ...]:
    """The layers whose inputs the head reads: from the config, or by the formula."""
    return LAYER_IDS if IDS in layout.flat else (2, 4, 5)


@torch.no_grad()
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_head_of_every_layout_drafts_as_defined(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    tensors = make_head(target(), layout)
    folder = write_layout(target(), layout, tensors, tmp_path)
    drafter: Any = build_in(folder, "eagle3", target(), **CHAIN)
    assert drafter.weights_layout == layout.name
    assert drafter.needs.layer_inputs == layer_ids(layout)
    head = PlainHead(target(), tensors, layout.switches)
    for prompt in map(list, prompts()):
        states = layer_inputs(target(), prompt[:-1], layer_ids(layout))
        tokens, log_probs = head.draft(states, torch.tensor(prompt[1:]), 5)
        tree = drafter.propose(started(drafter, target(), prompt))
        assert tree.tokens.tolist() == [prompt[-1], *tokens]
        assert tree.log_probs[1:].tolist() == pytest.approx(log_probs, abs=1e-4)


REFUSED: dict[str, tuple[Layout, dict[str, tuple[int, ...]], str]] = {
    "P-EAGLE": (LAYOUTS["SafeAILab"], {"mask_hidden": (1, 1, 96)}, "tensors: mask_hidden"),
    "P-EAGLE's config": (Layout("", {**FLAT, "parallel_drafting": True}), {}, "parallel_drafting"),
    "P-EAGLE of speculators": (
        speculators(speculators_model_type="peagle"), {}, "speculators_model_type 'peagle'",
    ),
    "a switch that readers set differently": (
        speculators(norm_before_residual=None), {}, "does not set norm_before_residual",
    ),
    "recurrent layers": (speculators("qwen3_next"), {}, "model_type 'qwen3_next'"),
    "a window": (
        Layout("", {**speculators().flat}, layer_section="transformer_layer_config", prefixes=(),
               nested={"model_type": "llama", "layer_types": ["sliding_attention"]}),
        {}, "layer_types",
    ),
    "both norms before fc": (
        speculators(fc_norm=True, norm_before_fc=True), {}, "fc_norm and norm_before_fc",
    ),
    "angles that depend on the length": (
        Layout("", {**FLAT, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}), {},
        "rope_scaling of type 'dynamic'",
    ),
    "two rotary bases": (
        Layout("", {**FLAT, "rope_scaling": {"rope_type": "default", "rope_theta": 7.0}}), {},
        "two values of rope_theta, [7.0, 5000.0]",
    ),
    "another number of layers": (
        Layout("ModelOpt", {**FLAT, "num_hidden_layers": 2}, prefixes=()), {},
        "num_hidden_layers 2",
    ),
    "another head size": (Layout("", {**FLAT, "head_dim": 16}), {}, "4 heads of 16 (head_dim)"),
    "two values of a switch": (
        Layout("", {**FLAT, "norm_output": True}, section="eagle_config",
               nested={"norm_output": False}), {},
        "norm_output True, but eagle_config.norm_output False",
    ),
    "a switch that is not a truth value": (
        Layout("", {**FLAT, "norm_output": "last"}), {}, "norm_output 'last'",
    ),
    "quantised": (Layout("", {**FLAT, "quantization_config": {}}), {}, "quantization_config"),
    "SGLang's further layers": (
        LAYOUTS["ModelOpt, three layers"], {"layers.1.hidden_norm.weight": (32,)},
        "tensors: layers.1.hidden_norm.weight",
    ),
    "a key of two layouts": (
        LAYOUTS["SafeAILab"], {"model.midlayer.hidden_norm.weight": (32,)},
        "has both model.midlayer.hidden_norm.weight and midlayer.hidden_norm.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_is_not_understood_is_refused_by_key(name: str, tmp_path: Path) -> None:
    layout, more, message = REFUSED[name]
    tensors = {
        **make_head(target(), layout),
        **{key: torch.zeros(shape).half() for key, shape in more.items()},
    }
    folder = write_layout(target(), layout, tensors, tmp_path)
    with error_with(CheckpointError, message):
        build_in(folder, "eagle3", target())


@pytest.mark.parametrize("fault", ["cut", "path", "missing file", "missing key", "no map"])
def test_a_broken_index_of_shards_is_refused(fault: str, tmp_path: Path) -> None:
    layout = LAYOUTS["SafeAILab in shards"]
    folder = write_layout(target(), layout, make_head(target(), layout), tmp_path)
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    shard = folder / "model-00002-of-00003.safetensors"
    if fault == "missing file":
        shard.unlink()
    changed = {
        "cut": text[:50], "path": text.replace(shard.name, f"../{shard.name}"),
        "missing file": text, "missing key": text.replace('"norm.weight"', '"other.weight"'),
        "no map": '{"weight_map": [1]}',
    }  # fmt: skip
    index.write_text(changed[fault])
    with error_with(CheckpointError, str(folder)):
        build_in(folder, "eagle3", target())


def proposed(folder: Path, method: str) -> tuple[str, list[int]]:
    """The layout of the head in a folder, and the tokens that it drafts after a prompt."""
    drafter = build_in(folder, method, target())
    tree = drafter.propose(started(drafter, target(), list(prompts()[1])))
    return drafter.weights_layout, tree.tokens.tolist()


def test_medusas_heads_in_vllms_layout_draft_the_same(tmp_path: Path) -> None:
    official = medusa(target(), tmp_path / "official", heads=5, layers=2)
    tensors = torch.load(official / "medusa_lm_head.pt", weights_only=True)
    renamed = {}
    for key, tensor in tensors.items():
        head, block, *rest = key.split(".")
        is_block = rest[0] == "linear"
        module = f"blocks.{head}.layers.{block}" if is_block else f"lm_heads.{head}"
        renamed[f"{module}.{rest[-1]}"] = tensor
    config = {"model_type": "medusa", "num_heads": 5, "num_hidden_layers": 2}

    def proposed_by_vllms(
        folder_name: str, tensors: Tensors, **fields: Any
    ) -> tuple[str, list[int]]:
        """The layout and the drafted tokens of a head in vLLM's layout with these config fields."""
        place = tmp_path / folder_name
        folder = write(place, "model.safetensors", tensors, {**config, **fields})
        return proposed(folder, "medusa")

    layout, tokens = proposed(official, "medusa")
    assert layout == "official"
    assert proposed_by_vllms("vllm", renamed, medusa_fc_bias=True) == ("vLLM", tokens)
    without_bias = {key: part for key, part in renamed.items() if not key.endswith("bias")}
    assert proposed_by_vllms("plain", without_bias)[1] != tokens
    for stray in ("token_map", "lm_head.weight"):
        with pytest.raises(CheckpointError, match=f"unexpected tensors: {stray}"):
            proposed_by_vllms(stray, {**renamed, stray: torch.zeros(3)})
    with pytest.raises(CheckpointError, match="truncated_vocab_size 9, but the target's"):
        proposed_by_vllms("cut", renamed, truncated_vocab_size=9)
    renamed.pop("blocks.2.layers.1.weight")
    with pytest.raises(CheckpointError, match=r"lacks blocks\.2\.layers\.1\.weight"):
        proposed_by_vllms("lack", renamed)


@torch.no_grad()
@pytest.mark.parametrize("has_bias", [True, False])
def test_eagles_heads_load_with_a_prefix_and_without_a_bias(has_bias: bool, tmp_path: Path) -> None:
    """In vLLM's layout, keys begin with `model.`, and an object holds the layer's fields."""
    official = eagle(target(), tmp_path / "official", fc_bias=has_bias)
    tensors = torch.load(official / "pytorch_model.bin", weights_only=True)
    fields = json.loads((official / "config.json").read_text())
    fields.pop("bias", None)
    config = {"model_type": "eagle", "architectures": ["EAGLEModel"], "model": fields}
    renamed = {f"model.{key}" if key != "fc.weight" else key: part for key, part in tensors.items()}
    folder = write(tmp_path / "vllm", "model.safetensors", renamed, config)
    official_layout, expected = proposed(official, "eagle")
    layout, tokens = proposed(folder, "eagle")
    assert (official_layout, layout) == ("SafeAILab", "AutoModel or vLLM")
    assert tokens == expected
