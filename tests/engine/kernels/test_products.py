"""The choice of a kernel by result and time, with made-up times."""

from __future__ import annotations

from dataclasses import replace

import torch

from specbench.engine.kernels import products
from specbench.engine.kernels.products import Choice, LinearCall, Product

PRODUCT = Product(15360, 5120)


def chosen(*seconds: float) -> Choice:
    """The choice, if the kernel and torch take these times."""
    return products.choose(PRODUCT, None, lambda: seconds)


def test_the_kernel_is_taken_unless_torch_beats_it_by_more_than_noise() -> None:
    assert chosen(1.0, 1.1) == Choice(PRODUCT, is_kernel=True, seconds=(1.0, 1.1))
    assert chosen(1.0, 1.0 - products.MARGIN / 2).is_kernel
    assert not chosen(1.0, 1.0 - products.MARGIN * 2).is_kernel


def test_torch_is_left_where_the_kernel_is_wrong_and_nothing_is_measured() -> None:
    def fail() -> list[float]:
        raise AssertionError("measured")

    choice = products.choose(PRODUCT, "too large", fail)
    assert not choice.is_kernel and choice.wrong == "too large"


def call(num_rows: int) -> LinearCall:
    weight = torch.zeros(32, 64, dtype=torch.bfloat16)
    return LinearCall(torch.zeros(num_rows, 64, dtype=torch.bfloat16), weight)


def test_tensors_that_are_not_contiguous_are_left_to_torch() -> None:
    dense = call(5)
    turned = replace(dense, x=torch.zeros(64, 5, dtype=torch.bfloat16).t())
    strided = replace(dense, weight=torch.zeros(32, 128, dtype=torch.bfloat16)[:, :64])
    shifted = replace(dense, weight=torch.zeros(32 * 64 + 1, dtype=torch.bfloat16)[1:].view(32, 64))
    assert dense.is_dense
    assert not any(one.is_dense for one in (turned, strided, shifted))
    residual = torch.zeros(5, 64, dtype=torch.bfloat16)[:, :32]
    assert not replace(dense, residual=residual).is_dense


def test_a_choice_is_recorded_with_its_times_and_reasons() -> None:
    gated = Product(13824, 5120, is_gated=True)
    choice = products.choose(gated, None, lambda: [2.5e-4, 3e-4])
    told = {
        "rows": 1,
        "weight": [27648, 5120],
        "is_gated": True,
        "launch": "row kernel, 2 rows",
        "chain_us": {"row kernel, 2 rows": 250.0, "torch": 300.0},
        "rejected": {},
    }
    assert choice.to_json() == told
    wrong = products.choose(gated, "out of resource: shared memory", list)
    rejected = {"row kernel, 2 rows": "out of resource: shared memory"}
    assert wrong.to_json() == {**told, "launch": "torch", "chain_us": {}, "rejected": rejected}


def test_only_a_single_row_has_a_kernel() -> None:
    assert call(1).product == Product(32, 64) and call(2).product is None
