"""A drafter's own cache equals a full recompute at every step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specbench.engine.decode import decode
from specbench.types import Request
from tests.methods.building import Recording, build_random
from tests.support.models import prompts, random_target
from tests.support.weights import build
from tests.training.head_models import started


@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "hydra", "sam"])
@torch.inference_mode()
def test_every_draft_is_that_of_a_drafter_that_starts_with_the_whole_text(
    method: str, tmp_path: Path
) -> None:
    """SAM-Decoding copies some drafts, and EAGLE-2 makes the others."""
    target = random_target(layers=4)
    made = {"arch": "prefix-mlp"} if method == "hydra" else None
    drafter, fresh = (
        build("sam", target, tmp_path, other="eagle2", num_tokens="5", threshold="3")
        if method == "sam"
        else build_random(method, target, tmp_path, made)
        for _ in range(2)
    )
    recording = Recording(drafter)
    lengths: list[int] = []
    for prompt in prompts():
        lengths += decode(target, recording, Request(prompt, 40)).accept_lengths
    assert max(lengths) > 1
    assert method != "sam" or {len(tokens) > 6 for _, tokens in recording.drafts} == {True, False}
    for text, tokens in recording.drafts:
        state = started(fresh, target, list(text))
        assert fresh.propose(state).tokens.tolist() == tokens
