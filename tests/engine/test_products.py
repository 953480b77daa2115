"""The choice of a launch by result and time, with made-up times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specbench.engine.kernels.products import (
    FEW,
    MARGIN,
    ROW,
    Choice,
    FewLaunch,
    Launch,
    LinearCall,
    Product,
    choose,
    launches,
)
from specbench.engine.layers.operands import Norm

PRODUCT = Product(64, 15360, 5120)


def times(seconds: Mapping[Launch, float]) -> Callable[[Sequence[Launch]], list[float]]:
    return lambda sound: [seconds[launch] for launch in sound]


def reasons(wrong: Mapping[Launch, str]) -> Callable[[Launch], str | None]:
    return lambda launch: wrong.get(launch)


def chosen(seconds: Mapping[Launch, float], wrong: Mapping[Launch, str] | None = None) -> Choice:
    """The choice among launches with these times; the first one is the default."""
    return choose(PRODUCT, list(seconds), reasons(wrong or {}), times(seconds))


def test_the_fastest_kernel_is_taken_where_it_beats_torch() -> None:
    choice = chosen({None: 1.0, FEW[0]: 0.9, FEW[1]: 0.8, FEW[2]: 0.95})
    assert choice.launch == FEW[1]
    assert choice.seconds[str(FEW[1])] == 0.8 and choice.seconds["torch"] == 1.0


def test_torch_is_kept_where_no_kernel_beats_it_by_more_than_noise() -> None:
    assert chosen({None: 1.0, FEW[0]: 1.1, FEW[1]: 1.0 - MARGIN / 2}).launch is None
    assert chosen({None: 1.0, FEW[0]: 1.1, FEW[1]: 1.0 - MARGIN * 2}).launch == FEW[1]


def test_the_fastest_row_kernel_is_kept_unless_torch_beats_it_by_more_than_noise() -> None:
    assert chosen({ROW[0]: 1.0, ROW[1]: 0.99, None: 0.989}).launch == ROW[1]
    assert chosen({ROW[0]: 1.0, ROW[1]: 0.99, None: 0.9}).launch is None


def test_a_wrong_launch_is_neither_measured_nor_taken_and_the_reason_is_kept() -> None:
    measured: list[Launch] = []

    def measure(sound: Sequence[Launch]) -> list[float]:
        measured.extend(sound)
        return [1.0, 0.5]

    wrong: dict[Launch, str] = {FEW[0]: "it is off by 3.0e-01"}
    choice = choose(PRODUCT, [None, FEW[0], FEW[1]], reasons(wrong), measure)
    assert measured == [None, FEW[1]] and choice.launch == FEW[1]
    assert choice.rejected == {str(FEW[0]): "it is off by 3.0e-01"}


def test_torch_is_left_where_every_kernel_is_wrong() -> None:
    assert chosen({None: 1.0, FEW[0]: 0.1}, {FEW[0]: "out of resource"}).launch is None
    assert chosen({ROW[0]: 0.1, ROW[1]: 0.1, None: 1.0}, dict.fromkeys(ROW, "no")).launch is None


def test_a_product_with_one_launch_is_not_measured() -> None:
    def fail(sound: Sequence[Launch]) -> list[float]:
        raise AssertionError("measured")

    choice = choose(PRODUCT, [None, FEW[0]], reasons({FEW[0]: "too large"}), fail)
    assert choice.launch is None and choice.rejected == {str(FEW[0]): "too large"}


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
        Product(16, 13824, 5120, is_gated=True), [None, FEW[0], FEW[2]],
        reasons({FEW[0]: "out of resource: shared memory"}), times({None: 3e-4, FEW[2]: 2.5e-4}),
    )  # fmt: skip
    assert choice.to_json() == {
        "rows": 16,
        "weight": [27648, 5120],
        "is_gated": True,
        "launch": "few-row kernel, 64 rows, 5 stages",
        "chain_us": {"torch": 300.0, "few-row kernel, 64 rows, 5 stages": 250.0},
        "rejected": {
            "few-row kernel, 128 rows, 4 stages, norm inside": "out of resource: shared memory"
        },
    }


def call(
    num_rows: int, size: int = 64, dtype: torch.dtype = torch.bfloat16, *, has_norm: bool = False
) -> LinearCall:
    weight: Tensor = torch.zeros(32, size, dtype=dtype)
    norm = Norm(weight.new_ones(size), 1e-5) if has_norm else None
    return LinearCall(weight.new_zeros(num_rows, size), weight, norm=norm)


def test_rows_are_rounded_up_to_the_next_launch() -> None:
    buckets = {1: 1, 2: 16, 16: 16, 17: 32, 32: 32, 33: 64, 60: 64, 64: 64}
    for num_rows, bucket in buckets.items():
        product = call(num_rows).product
        assert product is not None and product.num_rows == bucket
    assert call(65).product is None and launches(call(65)) == [None]


@pytest.mark.parametrize("size", [8, 56, 70])
def test_inputs_that_are_short_or_not_aligned_are_left_to_torch(size: int) -> None:
    assert launches(call(5, size)) == [None]
    assert launches(call(1, size)) == [ROW[0], ROW[1], ROW[2], None]  # without stages


def test_wide_numbers_of_few_rows_are_left_to_torch() -> None:
    assert launches(call(5, dtype=torch.float32)) == [None]
    assert launches(call(1, dtype=torch.float32)) == [*ROW, None]


def test_a_norm_is_computed_inside_where_there_is_one_that_float16_does_not_overflow() -> None:
    assert launches(call(5, has_norm=True)) == [None, *FEW]
    without = [FewLaunch(128, 4), FewLaunch(64, 5)]
    assert launches(call(5)) == [None, *without]
    assert launches(call(5, dtype=torch.float16, has_norm=True)) == [None, *without]
    assert launches(call(5, has_norm=True), few=()) == [None]
