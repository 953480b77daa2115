"""Models made from a source of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.source import make_target
from specbench.errors import CheckpointError
from tests.support.models import random_llama


@dataclass
class Source:
    """A source with a model's config and tensors."""

    config: Mapping[str, Any]
    state: dict[str, Tensor]
    name: str = "a test's source"

    def tensors(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.state.items():
            yield name, tensor.to(device, dtype)


def source() -> Source:
    model = random_llama(layers=2)
    return Source(model.config.to_dict(), dict(model.named_parameters()))


def made(given: Source) -> torch.Tensor:
    target = make_target(given, dtype=torch.float64, device=torch.device("cpu"))
    with torch.inference_mode():
        return target.prefill((1, 5, 6, 7)).logits[0]


def test_a_model_made_from_a_source_computes_the_same() -> None:
    with torch.inference_mode():
        expected = random_llama(layers=2)(torch.tensor([[1, 5, 6, 7]])).logits[0, -1]
    assert torch.allclose(made(source()), expected)


def test_a_missing_and_a_misshapen_tensor_are_named() -> None:
    lacking, misshapen = source(), source()
    del lacking.state["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"a test's source lacks model\.norm\.weight"):
        made(lacking)
    misshapen.state["lm_head.weight"] = torch.zeros(3, 3)
    with pytest.raises(CheckpointError, match=r"makes lm_head\.weight \[3, 3\]"):
        made(misshapen)
