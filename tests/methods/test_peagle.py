"""DFlash: one non-causal pass over a block of masks, with target features as keys and values.

P-EAGLE: one pass of EAGLE-3's draft model over committed pairs and masks.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specbench.engine.decode import decode
from specbench.engine.target import Target
from specbench.errors import CheckpointError
from specbench.types import Request
from tests.methods.building import Recording, build_in
from tests.methods.checkpoints import Tensors, dflash, random, write
from tests.methods.head_layouts import FLAT, LAYER_IDS, Layout, make_head, speculators, write_layout
from tests.methods.plain_eagle3 import PlainHead
from tests.support.models import prompts, random_llama, random_target, save
from tests.support.weights import build

MASK, INPUTS = 3, (1, 2, 3)
"""The mask token, and the layers whose inputs the heads of `dflash` read."""

VOCAB = 8
"""So few tokens that random heads are often right."""

PROMPTS = [tuple(token % VOCAB for token in prompt) for prompt in prompts()]


@cache
def target() -> Target:
    return random_target(layers=8, vocab_size=VOCAB)


def as_speculators(folder: Path, *, draft_vocab: int) -> Path:
    """The head in `folder` in the layout of speculators 0.9, with a draft vocabulary."""
    tensors, config = load_file(folder / "model.safetensors"), read(folder)
    vocab, hidden = target().vocab_size, target().config.hidden_size
    kept = torch.arange(0, vocab, 2)[:draft_vocab]
    tensors |= {
        "embed_tokens.weight": random(vocab, hidden, seed=31),
        "lm_head.weight": 4 * random(draft_vocab, hidden, seed=32),
        "d2t": kept - torch.arange(draft_vocab),
        "t2d": torch.isin(torch.arange(vocab), kept),
    }
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
             "num_hidden_layers", "head_dim", "vocab_size")  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    layer = {"model_type": "qwen3", "rope_parameters": rope, **{n: config[n] for n in sizes}}
    fields = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": layer,
        "draft_vocab_size": draft_vocab,
        "block_size": 5,
        "target_hidden_size": None,
        "aux_hidden_state_layer_ids": list(INPUTS),
        "mask_token_id": MASK,
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
    }
    return write(folder / "speculators", "model.safetensors", tensors, fields)


def read(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return config


@torch.no_grad()
def assert_drafts_as_defined(folder: Path, count: int, **options: Any) -> None:
    """Compare every draft of some completions with a plain forward over text and block."""
    drafter = Recording(build_in(folder, "dflash", target(), **options))
    lengths = [decode(target(), drafter, Request(p, 30)).accept_lengths for p in PROMPTS]
    assert max(max(accepted) for accepted in lengths) > 2
    head = PlainHead.of(target(), load_file(folder / "model.safetensors"), {})
    for text, (pending, *drafted) in drafter.drafts:
        assert (pending, len(drafted)) == (text[-1], count)
        out = target().model(torch.tensor([text[:-1]]), output_hidden_states=True)
        parts = [out.hidden_states[layer][0] for layer in INPUTS]
        assert drafted == head.fill_block(parts, torch.tensor([pending, *[MASK] * count]))


def test_every_draft_is_what_a_plain_forward_over_text_and_block_predicts(tmp_path: Path) -> None:
    folder = dflash(target(), tmp_path)
    drafter = build_in(folder, "dflash", target())
    assert (drafter.weights_layout, drafter.needs.layer_inputs) == ("z-lab", INPUTS)
    assert_drafts_as_defined(folder, 4)


def test_option_num_tokens_replaces_the_block_size(tmp_path: Path) -> None:
    assert_drafts_as_defined(dflash(target(), tmp_path), 7, num_tokens=7)


def test_a_head_of_speculators_with_its_own_vocabulary_drafts_as_defined(tmp_path: Path) -> None:
    folder = as_speculators(dflash(target(), tmp_path), draft_vocab=3)
    assert build_in(folder, "dflash", target()).weights_layout == "speculators"
    assert_drafts_as_defined(folder, 4)


NUM_TOKENS = 5
OF_VLLM = {**FLAT, "parallel_drafting": True, "ptd_token_id": MASK}
OF_SPECULATORS: dict[str, Any] = {"speculators_model_type": "peagle", "mask_token_id": MASK}
LAYOUTS = {
    "vLLM": Layout("SafeAILab", OF_VLLM, num_layers=2),
    "vLLM, own embedding": Layout("SafeAILab", OF_VLLM, num_layers=4, has_embedding=True),
    "speculators": speculators(**OF_SPECULATORS),
    "speculators, four qwen3 layers": speculators(
        "qwen3", num_layers=4, norm_before_fc=True, norm_before_residual=True, **OF_SPECULATORS
    ),
    "speculators, fc_norm": speculators(
        num_layers=2, fc_norm=True, norm_output=True, **OF_SPECULATORS
    ),
}


def with_mask(layout: Layout) -> Tensors:
    """Random tensors of a head under their internal names."""
    hidden = target().config.hidden_size
    mask = random(1, 1, len(LAYER_IDS) * hidden, seed=70).float()
    return {**make_head(target(), layout, seed=5), "mask_hidden": mask}  # some drafts are right


@torch.no_grad()
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_draft_is_what_a_plain_forward_over_pairs_and_masks_predicts(
    name: str, tmp_path: Path
) -> None:
    layout, tensors = LAYOUTS[name], with_mask(LAYOUTS[name])
    folder = write_layout(target(), layout, tensors, tmp_path)
    head: Any = build_in(folder, "peagle", target(), num_tokens=NUM_TOKENS)
    assert head.weights_layout == layout.name
    assert head.needs.layer_inputs == LAYER_IDS
    drafter, model = Recording(head), target().model
    lengths = [decode(target(), drafter, Request(p, 30)).accept_lengths for p in PROMPTS]
    assert max(max(accepted) for accepted in lengths) > 1
    plain = PlainHead.of(target(), tensors, layout.switches)
    masks = torch.full((NUM_TOKENS - 1,), MASK)
    for text, (pending, *drafted) in drafter.drafts:
        assert pending == text[-1]
        states = model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
        parts = [states[layer][0] for layer in LAYER_IDS]
        assert drafted == plain.draft_at_once(parts, torch.tensor(text[1:]), masks)


def test_an_eagle3_head_is_refused(tmp_path: Path) -> None:
    for number, layout in enumerate((speculators(), Layout("SafeAILab", FLAT))):
        folder = write_layout(target(), layout, make_head(target(), layout), tmp_path / str(number))
        with pytest.raises(CheckpointError, match=r"speculators_model_type|mask_token_id"):
            build_in(folder, "peagle", target())


PARD_PROMPT, NUM_PARD = (1, 7, 8, 9, 10, 11), 4


@torch.inference_mode()
def test_a_draft_is_what_a_plain_forward_over_text_and_masks_predicts(tmp_path: Path) -> None:
    target = random_target()
    drafter = Recording(build("pard", target, tmp_path, num_tokens=str(NUM_PARD)))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "pard", dtype=target.dtype)
    decode(target, drafter, Request(PARD_PROMPT, 20))
    assert len(drafter.drafts) > 3
    for text, (pending, *drafted) in drafter.drafts:
        assert pending == text[-1]
        ids = [*text, *[plain.config.pard_token] * (NUM_PARD - 1)]
        expected = plain(torch.tensor([ids])).logits[0, len(text) - 1 :].argmax(-1).tolist()
        assert drafted == expected[: len(drafted)]
    assert max(len(tokens) for _, tokens in drafter.drafts) == 1 + NUM_PARD


def test_a_model_as_its_own_draft_model_gets_its_first_draft_token_accepted(tmp_path: Path) -> None:
    """The first draft token sees no mask, so that a target always accepts its own."""
    model = random_llama()
    model.config.pard_token = 3
    target = random_target()
    drafter = build_in(save(model, tmp_path), "pard", target, num_tokens=2)
    done = decode(target, drafter, Request(PARD_PROMPT, 20))
    assert min(done.accept_lengths[:-1]) >= 2


@pytest.mark.parametrize("token", [None, -1, 10**6, "3"])
def test_a_draft_model_without_a_mask_token_is_refused(token: object, tmp_path: Path) -> None:
    model = random_llama(layers=2)
    model.config.pard_token = token
    with pytest.raises(CheckpointError, match="pard_token"):
        build_in(save(model, tmp_path), "pard", random_target())
