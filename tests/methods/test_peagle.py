"""P-EAGLE: one pass of EAGLE-3's draft model over committed pairs and masks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.target import Target
from specbench.errors import CheckpointError
from specbench.types import Request
from tests.methods.building import Recording, build_in
from tests.methods.checkpoints import Tensors, random
from tests.methods.head_layouts import FLAT, LAYER_IDS, Layout, make_head, speculators, write_layout
from tests.methods.plain_eagle3 import PlainHead
from tests.support.models import prompts, random_target

MASK, NUM_TOKENS = 3, 5
VOCAB = 8
"""So few tokens that random heads are often right."""

PROMPTS = [tuple(token % VOCAB for token in prompt) for prompt in prompts()]
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


@cache
def target() -> Target:
    return random_target(layers=8, vocab_size=VOCAB)


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


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"ptd_token_id": None}, "a config without mask_token_id or ptd_token_id or pard_token"),
        ({"ptd_token_id": 8}, "ptd_token_id 8, but there are 8 tokens"),
        ({"parallel_drafting": 2}, "parallel_drafting 2"),
    ],
)
def test_a_config_without_a_usable_mask_token_is_refused(
    changes: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    layout = replace(LAYOUTS["vLLM"], flat={**OF_VLLM, **changes})
    folder = write_layout(target(), layout, with_mask(layout), tmp_path)
    with pytest.raises(CheckpointError, match=fault):
        build_in(folder, "peagle", target())


@pytest.mark.parametrize("shape", [(95,), (2, 48), None])
def test_a_mask_feature_of_another_size_is_refused(
    shape: tuple[int, ...] | None, tmp_path: Path
) -> None:
    layout, tensors = LAYOUTS["speculators"], with_mask(LAYOUTS["speculators"])
    del tensors["mask_hidden"]
    if shape:
        tensors["mask_hidden"] = torch.zeros(shape)
    folder = write_layout(target(), layout, tensors, tmp_path)
    with pytest.raises(CheckpointError, match="mask_hidden"):
        build_in(folder, "peagle", target())


def test_an_eagle3_head_is_refused(tmp_path: Path) -> None:
    for number, layout in enumerate((speculators(), Layout("SafeAILab", FLAT))):
        folder = write_layout(target(), layout, make_head(target(), layout), tmp_path / str(number))
        with pytest.raises(CheckpointError, match=r"speculators_model_type|mask_token_id"):
            build_in(folder, "peagle", target())
