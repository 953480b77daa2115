"""Weights lie next to each other in huge pages."""

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine import huge_pages
from specbench.engine.kernels.native_ops import native_ops
from specbench.engine.layers.mlp import join
from specbench.engine.layers.ops import Ops
from specbench.engine.layers.stack import Stack
from tests.support.models import random_llama

IDS = torch.tensor([[3, 1, 4, 1, 5]])


@pytest.fixture
def model() -> Any:
    sizes = {"hidden_size": 128, "intermediate_size": 384, "vocab_size": 3000}
    return random_llama(3, **sizes, tie_word_embeddings=True).float()


def storages(model: Any) -> set[int]:
    return {
        weight.untyped_storage().data_ptr() for weight in model.parameters() if weight.ndim == 2
    }


@torch.inference_mode()
def test_a_moved_model_is_the_same_model_in_one_block(model: Any) -> None:
    before = model(IDS).logits
    huge_pages.move(model)
    assert torch.equal(model(IDS).logits, before)
    assert len(storages(model)) == 1
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages on this system")
def test_layers_that_follow_each_other_are_joined_without_a_copy(
    model: Any, tmp_path: Path
) -> None:
    Stack(model, native_ops(torch.float32, tmp_path))
    assert len(storages(model)) == 1
    mlp = model.model.layers[1].mlp
    joined, _ = join([mlp.gate_proj, mlp.up_proj])
    assert joined.data_ptr() == mlp.gate_proj.weight.data_ptr()
    assert torch.equal(joined[384:], mlp.up_proj.weight)


def test_other_operations_leave_weights_where_they_are(model: Any) -> None:
    place = model.lm_head.weight.data_ptr()
    Stack(model, Ops())
    assert model.lm_head.weight.data_ptr() == place


@pytest.mark.parametrize("why", ["small", "no huge pages"])
def test_weights_stay_if_moving_does_not_help(
    why: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "small":
        monkeypatch.setattr(huge_pages, "HUGE", 2**40)
    else:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    places = storages(model)
    huge_pages.move(model)
    assert storages(model) == places
