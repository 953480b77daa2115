"""DFlash: one non-causal pass over a block of masks, with target features as keys and values.

P-EAGLE: one pass of EAGLE-3's draft model over committed pairs and masks.
"""

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
from tests.methods.checkpoints import Tensors, dflash, random, vocabulary
from tests.methods.head_layouts import FLAT, LAYER_IDS, Layout, make_head, speculators, write_layout
from tests.methods.plain_eagle3 import PlainHead, layer_inputs
from tests.support.models import prompts, random_llama, random_target, save
from tests.support.weights import build

MASK, INPUTS = 3, (1, 2, 3)
"""The mask token, and the layers whose inputs the heads of `dflash` read."""

VOCAB = 8
"""A vocabulary so small that random heads are often right."""

PROMPTS = [tuple(token % VOCAB for token in prompt) for prompt in prompts()]


@cache
def target() -> Target:
    return random_target(layers=8, vocab_size=VOCAB)


def as_speculators(folder: Path) -> Path:
    """The head in `folder` in the layout of speculators 0.9, with a vocabulary of three tokens."""
    vocab, hidden = target().vocab_size, target().config.hidden_size
    tensors = {
        **load_file(folder / "model.safetensors"),
        **vocabulary(vocab, 3),
        "embed_tokens.weight": random(vocab, hidden, seed=31),
        "lm_head.weight": 4 * random(3, hidden, seed=32),
    }
    fields = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "block_size": 5,
        "target_hidden_size": None,
        "aux_hidden_state_layer_ids": list(INPUTS),
        "mask_token_id": MASK,
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
    }
    layout = Layout(
        "speculators", fields, layer_section="transformer_layer_config",
        nested={"model_type": "qwen3"}, num_layers=2, prefixes=(),
    )  # fmt: skip
    return write_layout(target(), layout, tensors, folder / "speculators")


@torch.no_grad()
@pytest.mark.parametrize(("layout", "num_tokens"), [("z-lab", 0), ("z-lab", 7), ("speculators", 0)])
def test_every_draft_is_what_a_plain_forward_over_text_and_block_predicts(
    layout: str, num_tokens: int, tmp_path: Path
) -> None:
    """A head of speculators has its own vocabulary, and an option replaces the block size."""
    folder = dflash(target(), tmp_path)
    if layout == "speculators":
        folder = as_speculators(folder)
    dflash_drafter = build_in(folder, "dflash", target(), num_tokens=num_tokens)
    assert (dflash_drafter.weights_layout, dflash_drafter.needs.layer_inputs) == (layout, INPUTS)
    drafter = Recording(dflash_drafter)
    lengths = [decode(target(), drafter, Request(p, 30)).accept_lengths for p in PROMPTS]
    assert max(max(accepted) for accepted in lengths) > 2
    head = PlainHead(target(), load_file(folder / "model.safetensors"), {})
    for text, drafted in drafter.drafts:
        states = layer_inputs(target(), text[:-1], INPUTS)
        block = torch.tensor([text[-1], *[MASK] * (num_tokens or 4)])
        assert drafted == head.fill_block(states, block)


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
    mask = random(1, 1, len(LAYER_IDS) * target().config.hidden_size, seed=70).float()
    return {**make_head(target(), layout, seed=5), "mask_hidden": mask}  # some drafts are right


@torch.no_grad()
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_draft_is_what_a_plain_forward_over_pairs_and_masks_predicts(
    name: str, tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    folder = write_layout(target(), layout, with_mask(layout), tmp_path)
    head: Any = build_in(folder, "peagle", target(), num_tokens=NUM_TOKENS)
    assert head.weights_layout == layout.name
    assert head.needs.layer_inputs == LAYER_IDS
    drafter = Recording(head)
    lengths = [decode(target(), drafter, Request(p, 30)).accept_lengths for p in PROMPTS]
    assert max(max(accepted) for accepted in lengths) > 1
    plain = PlainHead(target(), with_mask(layout), layout.switches)
    masks = torch.full((NUM_TOKENS - 1,), MASK)
    for text, drafted in drafter.drafts:
        states = layer_inputs(target(), text[:-1], LAYER_IDS)
        assert drafted == plain.draft_at_once(states, torch.tensor(text[1:]), masks)


PARD_PROMPT, NUM_PARD = (1, 7, 8, 9, 10, 11), 4


@torch.inference_mode()
def test_a_draft_is_what_a_plain_forward_over_text_and_masks_predicts(tmp_path: Path) -> None:
    target = random_target()
    drafter = Recording(build("pard", target, tmp_path, num_tokens=str(NUM_PARD)))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "pard", dtype=target.dtype)
    decode(target, drafter, Request(PARD_PROMPT, 20))
    assert len(drafter.drafts) > 3
    for text, drafted in drafter.drafts:
        ids = [*text, *[plain.config.pard_token] * (NUM_PARD - 1)]
        expected = plain(torch.tensor([ids])).logits[0, len(text) - 1 :].argmax(-1).tolist()
        assert drafted == expected[: len(drafted)]
    assert max(len(drafted) for _, drafted in drafter.drafts) == NUM_PARD


@pytest.mark.parametrize("token", [None, -1, 10**6, "3"])
def test_a_draft_model_without_a_mask_token_is_refused(token: object, tmp_path: Path) -> None:
    model = random_llama(layers=2)
    model.config.pard_token = token
    with pytest.raises(CheckpointError, match="pard_token"):
        build_in(save(model, tmp_path), "pard", random_target())
