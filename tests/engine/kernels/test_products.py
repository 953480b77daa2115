"""The choice of a launch by result and time, with made-up times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from specbench.engine.kernels.products import (
    FEW,
    MARGIN,
    ROW,
    Choice,
    Launch,
    LinearCall,
    Product,
    choose,
    launches,
)

PRODUCT = Product(64, 15360, 5120)


def times(seconds: Mapping[Launch, float]) -> Callable[[Sequence[Launch]], list[float]]:
    return lambda sound: [seconds[launch] for launch in sound]


def reasons(wrong: Mapping[Launch, str]) -> Callable[[Launch], str | None]:
    return lambda launch: wrong.get(launch)


def chosen(seconds: Mapping[Launch, float], wrong: Mapping[Launch, str] | None = None) -> Choice:
    """The choice among launches with these times; the first one is the default."""
    return choose(PRODUCT, list(seconds), reasons(wrong or {}), times(seconds))


def test_a_kernel_is_taken_where_it_beats_torch_by_more_than_noise() -> None:
    choice = chosen({None: 1.0, FEW: 0.8})
    assert choice.launch == FEW
    assert choice.seconds == {"torch": 1.0, str(FEW): 0.8}
    assert chosen({None: 1.0, FEW: 1.0 - MARGIN / 2}).launch is None
    assert chosen({None: 1.0, FEW: 1.0 - MARGIN * 2}).launch == FEW


def test_the_fastest_row_kernel_is_kept_unless_torch_beats_it_by_more_than_noise() -> None:
    assert chosen({ROW[0]: 1.0, ROW[1]: 0.99, None: 0.989}).launch == ROW[1]
    assert chosen({ROW[0]: 1.0, ROW[1]: 0.99, None: 0.9}).launch is None


def test_a_wrong_launch_is_neither_measured_nor_taken_and_the_reason_is_kept() -> None:
    measured: list[Launch] = []

    def measure(sound: Sequence[Launch]) -> list[float]:
        measured.extend(sound)
        return [1.0, 0.5]

    wrong: dict[Launch, str] = {ROW[0]: "it is off by 3.0e-01"}
    choice = choose(PRODUCT, [None, ROW[0], ROW[1]], reasons(wrong), measure)
    assert measured == [None, ROW[1]] and choice.launch == ROW[1]
    assert choice.rejected == {str(ROW[0]): "it is off by 3.0e-01"}


def test_torch_is_left_where_every_kernel_is_wrong() -> None:
    assert chosen({None: 1.0, FEW: 0.1}, {FEW: "out of resource"}).launch is None
    assert chosen({ROW[0]: 0.1, ROW[1]: 0.1, None: 1.0}, dict.fromkeys(ROW, "no")).launch is None


def test_a_product_with_one_launch_is_not_measured() -> None:
    def fail(sound: Sequence[Launch]) -> list[float]:
        raise AssertionError("measured")

    choice = choose(PRODUCT, [None, FEW], reasons({FEW: "too large"}), fail)
    assert choice.launch is None and choice.rejected == {str(FEW): "too large"}


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
    choice = choose(
        Product(16, 13824, 5120, is_gated=True), [None, FEW, ROW[0]],
        reasons({ROW[0]: "out of resource: shared memory"}), times({None: 3e-4, FEW: 2.5e-4}),
    )  # fmt: skip
    assert choice.to_json() == {
        "rows": 16,
        "weight": [27648, 5120],
        "is_gated": True,
        "launch": "few-row kernel, 128 rows",
        "chain_us": {"torch": 300.0, "few-row kernel, 128 rows": 250.0},
        "rejected": {"row kernel, 4 rows": "out of resource: shared memory"},
    }


def call(num_rows: int, size: int = 64, dtype: torch.dtype = torch.bfloat16) -> LinearCall:
    return LinearCall(torch.zeros(num_rows, size, dtype=dtype), torch.zeros(32, size, dtype=dtype))


def test_rows_are_rounded_up_to_the_next_launch() -> None:
    buckets = {1: 1, 2: 16, 16: 16, 17: 32, 32: 32, 33: 64, 60: 64, 64: 64}
    for num_rows, bucket in buckets.items():
        product = call(num_rows).product
        assert product is not None and product.num_rows == bucket
    assert call(65).product is None and launches(call(65)) == [None]


@pytest.mark.parametrize(
    ("size", "dtype", "few"),
    [
        (64, torch.bfloat16, [None, FEW]),
        (8, torch.bfloat16, [None]),  # short
        (70, torch.bfloat16, [None]),  # not aligned
        (64, torch.float32, [None]),
    ],
)
def test_few_rows_have_a_kernel_for_aligned_inputs_in_half_precision(
    size: int, dtype: torch.dtype, few: list[Launch]
) -> None:
    assert launches(call(5, size, dtype)) == few
    assert launches(call(5, size, dtype), has_few=False) == [None]
    assert launches(call(1, size, dtype)) == [*ROW, None]
