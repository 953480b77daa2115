"""PARD: one pass of the draft model over committed tokens and masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.errors import CheckpointError
from specbench.registry import get
from specbench.types import Request
from tests.methods.building import Recording
from tests.support.models import random_llama, random_target, save
from tests.support.weights import build

PROMPT, NUM_TOKENS = (1, 7, 8, 9, 10, 11), 4


@torch.inference_mode()
def test_a_draft_is_what_a_plain_forward_over_text_and_masks_predicts(tmp_path: Path) -> None:
    target = random_target()
    drafter = Recording(build("pard", target, tmp_path, num_tokens=str(NUM_TOKENS)))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "pard", dtype=target.dtype)
    decode(target, drafter, Request(PROMPT, 20))
    assert len(drafter.drafts) > 3
    for text, (pending, *drafted) in drafter.drafts:
        assert pending == text[-1]
        ids = [*text, *[plain.config.pard_token] * (NUM_TOKENS - 1)]
        expected = plain(torch.tensor([ids])).logits[0, len(text) - 1 :].argmax(-1).tolist()
        assert drafted == expected[: len(drafted)]
    assert max(len(tokens) for _, tokens in drafter.drafts) == 1 + NUM_TOKENS


def test_a_model_as_its_own_draft_model_gets_its_first_draft_token_accepted(
    tmp_path: Path,
) -> None:
    """The first draft token sees no mask, so that a target always accepts its own."""
    model = random_llama()
    model.config.pard_token = 3
    target = random_target()
    context = BuildContext(target, save(model, tmp_path))
    method = get("pard")
    done = decode(target, method.build(method.options(num_tokens=2), context), Request(PROMPT, 20))
    assert min(done.accept_lengths[:-1]) >= 2


@pytest.mark.parametrize("token", [None, -1, 10**6, "3"])
def test_a_draft_model_without_a_mask_token_is_refused(token: object, tmp_path: Path) -> None:
    model = random_llama(layers=2)
    model.config.pard_token = token
    context = BuildContext(random_target(), save(model, tmp_path))
    method = get("pard")
    with pytest.raises(CheckpointError, match="pard_token"):
        method.build(method.options(), context)
