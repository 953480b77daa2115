"""Trainable heads compute the same as the drafters, and the drafters can read their files."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaForCausalLM, OPTConfig, PretrainedConfig

from specbench.engine.model_parts import decoder_layers
from specbench.engine.target import Target
from specbench.methods._eagle import EagleDrafter
from specbench.training.eagle3 import Eagle3Head
from specbench.training.head_files import write_head
from specbench.training.llama_layer import Layer, config_fields, layer_config
from specbench.training.recipe import HEADS, frequent_tokens, new_head
from specbench.zoo.heads import feature_layers
from tests.support.architectures import config_of
from tests.support.models import static_tree
from tests.training.head_models import (
    NUM_TOKENS,
    OPTIONS,
    batches,
    fed,
    loaded,
    micro_model,
    random_head,
    started,
    target_outputs,
)

TEXT = [1, *torch.randint(5, 600, (30,), generator=torch.Generator().manual_seed(1)).tolist()]
TREE = static_tree("mc_sim_7b_63", vocab_size=NUM_TOKENS)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return micro_model()


@pytest.mark.parametrize("method", ["medusa", "hydra"])
@torch.no_grad()
def test_heads_of_each_depth_match_the_drafters_on_every_path(
    model: LlamaForCausalLM, tmp_path: Path, method: str
) -> None:
    head = random_head(method, model)
    drafter = loaded(method, head, model, tmp_path)
    tokens = drafter.propose(started(drafter, Target(model), TEXT)).tokens
    at = len(TEXT) - 2  # the last position whose hidden state is known
    for node in range(1, TREE.layout.num_nodes):
        above = TREE.layout.ancestors[node].nonzero().flatten()[:-1]
        ids = torch.tensor([[*TEXT[:-1], *tokens[above].tolist(), 0]])
        logits = head.draft_logits(ids, target_outputs(head, model, ids))[len(above) - 1][0, at]
        assert tokens[node] == logits.topk(10).indices[TREE.ranks[node]]


SCALING = {
    "rope_type": "llama3", "rope_theta": 5e4, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@torch.no_grad()
def test_eagles_outputs_match_the_drafters_with_scaled_rotary_positions(
    tmp_path: Path, method: str
) -> None:
    model = micro_model(rope_parameters=SCALING)
    head = random_head(method, model)
    drafter = loaded(method, head, model, tmp_path)
    assert isinstance(drafter, EagleDrafter)
    ids = torch.tensor([TEXT])
    expected = head.draft_logits(ids, target_outputs(head, model, ids))[0][0]
    for length in (5, len(TEXT)):
        state = started(drafter, Target(model), TEXT[:length])
        logits = drafter.model.logits(fed(drafter, state))[0]
        assert torch.allclose(logits, expected[length - 2], atol=1e-4)


@torch.no_grad()
def test_eagle3s_unrolled_steps_match_the_drafters_levels(
    model: LlamaForCausalLM, tmp_path: Path
) -> None:
    head = random_head("eagle3", model)
    assert isinstance(head, Eagle3Head)
    drafter = loaded("eagle3", head, model, tmp_path)
    assert isinstance(drafter, EagleDrafter)
    ids = torch.tensor([TEXT])
    outputs = head.outputs(ids, target_outputs(head, model, ids))
    draft = drafter.model
    for length in (5, 20):
        state = started(drafter, Target(model), TEXT[:length])
        hidden = fed(drafter, state)
        assert torch.allclose(hidden[0], outputs[0][0, length - 2], atol=1e-4)
        end = torch.tensor(state.num_committed)
        places = draft.stack.tree_slots(end, [1] * (len(outputs) - 1))
        for depth, place in enumerate(places, start=1):
            token = torch.tensor([TEXT[length + depth - 1]])
            hidden = draft.stack.extend(
                *draft.draft_pairs(hidden, token), place, end, torch.zeros(1, depth),
                drafter.cache_span(state),
            )  # fmt: skip
            assert torch.allclose(hidden[0], outputs[depth][0, length - 2], atol=1e-4)


@pytest.mark.parametrize("draft_vocab", [600, NUM_TOKENS])
@pytest.mark.parametrize("method", HEADS)
def test_the_files_have_the_official_format(
    model: LlamaForCausalLM, tmp_path: Path, method: str, draft_vocab: int
) -> None:
    head = random_head(method, model, draft_vocab=draft_vocab)
    write_head(head, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", head.file_name]
    tensors = torch.load(tmp_path / head.file_name, weights_only=True)
    kinds = {str(tensor.dtype) for tensor in tensors.values()}
    assert kinds - {"torch.int64", "torch.bool"} == {"torch.float16"}
    config = json.loads((tmp_path / "config.json").read_text())
    is_eagle = method.startswith("eagle")
    if is_eagle:
        assert config["rope_theta"] == 50000.0 and config["num_key_value_heads"] == 2
        assert config["num_hidden_layers"] == 1
    has_maps = is_eagle and draft_vocab < NUM_TOKENS  # as vLLM expects
    assert ("d2t" in tensors, "t2d" in tensors) == (has_maps, has_maps)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn", "dynamic", "longrope"])
def test_only_the_targets_constants_scale_rotary_positions(kind: str) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    scaling = {**SCALING, **factors, "rope_type": kind}
    config = config_of("llama", rope_parameters={**scaling, "partial_rotary_factor": 1.0})
    target: Any = SimpleNamespace(config=config)
    fields = config_fields(target)
    kept = {name: value for name, value in scaling.items() if name != "rope_theta"}
    assert fields["rope_theta"] == 5e4
    assert fields.get("rope_scaling") == (None if kind in ("dynamic", "longrope") else kept)


@pytest.mark.parametrize(
    "config",
    [
        OPTConfig(hidden_size=32, ffn_dim=128, num_attention_heads=4, word_embed_proj_dim=32),
        GPT2Config(n_embd=32, n_head=4, n_positions=64),
    ],
    ids=["opt", "gpt2"],
)
def test_a_heads_sizes_are_the_targets_even_under_other_names(config: PretrainedConfig) -> None:
    target: Any = SimpleNamespace(config=config)
    fields = config_fields(target)
    assert fields["num_attention_heads"] == 4
    layer = Layer(layer_config(fields), 64)
    assert layer.mlp.down_proj.weight.shape == (32, 128)
    assert layer.self_attn.o_proj.weight.shape == (32, 32)


def test_the_draft_vocabulary_has_the_heaviest_tokens() -> None:
    ids = frequent_tokens(batches().rows, 100, NUM_TOKENS)
    counts = torch.zeros(NUM_TOKENS, dtype=torch.float64)
    for batch in batches().in_order():
        weights = batch.weights.double().flatten()
        counts += torch.bincount(batch.ids.flatten(), weights, NUM_TOKENS)
    assert ids.tolist() == sorted(set(ids.tolist())) and len(ids) == 100
    assert counts[ids].min() >= counts.sort(descending=True).values[100]


def test_features_come_from_the_official_layers() -> None:
    assert feature_layers(32) == (2, 16, 29)
    assert feature_layers(12) == (2, 6, 9)


def test_eagle3_starts_as_the_targets_last_layer_over_the_last_feature() -> None:
    model = micro_model()
    head = new_head("eagle3", model, OPTIONS, batches())
    assert isinstance(head, Eagle3Head)
    ids = batches()[0].ids
    outputs = target_outputs(head, model, ids)
    with torch.no_grad():
        first = head.outputs(ids, outputs)[0]
        layer = decoder_layers(model)[-1]
        feature = outputs.layer_inputs[head.layer_ids[-1]]
        positions = torch.arange(ids.shape[1])[None]
        rotary = model.base_model.rotary_emb(feature, positions)
        mask = torch.full((ids.shape[1],) * 2, float("-inf")).triu(1)[None, None]
        expected = layer(feature, attention_mask=mask, position_embeddings=rotary)
    assert torch.allclose(first, expected, atol=1e-3)
    assert torch.equal(head.norm.weight, model.base_model.norm.weight)
