"""A drafter's own cache equals a full recompute at every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.decode import decode
from specbench.types import Request
from tests.methods.building import Recording, build_random
from tests.support.models import prompts, random_target
from tests.training.head_models import started


@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "hydra"])
@torch.inference_mode()
def test_every_draft_is_that_of_a_drafter_that_starts_with_the_whole_text(
    method: str, tmp_path: Path
) -> None:
    target = random_target(layers=4)
    made = {"arch": "prefix-mlp"} if method == "hydra" else None
    drafter: Any = Recording(build_random(method, target, tmp_path, made))
    fresh: Any = build_random(method, target, tmp_path, made)
    lengths: list[int] = []
    for prompt in prompts():
        lengths += decode(target, drafter, Request(prompt, 24)).accept_lengths
    assert max(lengths) > 1
    for text, tokens in drafter.drafts:
        state = started(fresh, target, list(text))
        assert fresh.propose(state).tokens.tolist() == tokens
