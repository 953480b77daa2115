"""The operations of a level of a draft tree are listed, so that none is added unnoticed."""

from collections import Counter
from pathlib import Path

import pytest

from specbench.engine.layers.ops import TORCH
from tests.support.launches import Launches, per_level

LAYER = Counter(
    {
        "linear": 2,
        "addmm_": 2,
        "rms_norm": 1,
        "silu": 1,  # products, a norm and a gate
        "mul_": 2,
        "addcmul_": 1,
        "roll": 1,
        "repeat": 1,
        "index_copy_": 1,  # rotary embedding
        "pad": 1,
        "scaled_dot_product_attention": 1,
    }
)
GROWTH = Counter(
    {
        "topk": 2,
        "add": 2,
        "floor_divide": 1,
        "index_select": 3,
        "cat": 2,
        "embedding": 1,
        "log_softmax": 1,
    }
)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("eagle2", {"linear": 2}),  # fc and the head
        ("eagle3", {"linear": 1, "rms_norm": 3, "index": 1}),  # with ids of the draft vocabulary
    ],
)
def test_a_level_starts_only_the_listed_operations(
    name: str, more: dict[str, int], tmp_path: Path
) -> None:
    assert per_level(name, TORCH, tmp_path, Launches()) == LAYER + GROWTH + Counter(more)
