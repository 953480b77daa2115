"""The choice of a launch by result and time, with made-up times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from specbench.engine.kernels import products
from specbench.engine.kernels.products import ROW, Choice, Launch, LinearCall, Product

PRODUCT = Product(15360, 5120)


def times(seconds: Mapping[Launch, float]) -> Callable[[Sequence[Launch]], list[float]]:
    return lambda sound: [seconds[launch] for launch in sound]


def chosen(*seconds: float) -> Choice:
    """The choice, if the kernels and torch take these times."""
    by_launch = dict(zip((*ROW, None), seconds, strict=True))
    return products.choose(PRODUCT, lambda kernel: None, times(by_launch))


def test_the_fastest_kernel_is_taken_unless_torch_beats_it_by_more_than_noise() -> None:
    choice = chosen(1.0, 0.99, 1.2, 0.989)
    assert choice.launch == ROW[1]
    assert list(choice.seconds) == [*map(str, ROW), "torch"] and choice.seconds["torch"] == 0.989
    assert chosen(1.0, 2.0, 2.0, 1.0 - products.MARGIN / 2).launch == ROW[0]
    assert chosen(1.0, 2.0, 2.0, 1.0 - products.MARGIN * 2).launch is None


def test_torch_is_left_where_every_kernel_is_wrong_and_nothing_is_measured() -> None:
    def fail(sound: Sequence[Launch]) -> list[float]:
        raise AssertionError("measured")

    choice = products.choose(PRODUCT, dict.fromkeys(ROW, "too large").get, fail)
    assert choice.launch is None and set(choice.rejected.values()) == {"too large"}


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
    seconds = {ROW[1]: 2.5e-4, ROW[2]: 2.6e-4, None: 3e-4}
    wrong = {ROW[0]: "out of resource: shared memory"}
    choice = products.choose(Product(13824, 5120, is_gated=True), wrong.get, times(seconds))
    assert choice.to_json() == {
        "rows": 1,
        "weight": [27648, 5120],
        "is_gated": True,
        "launch": "row kernel, 1 rows",
        "chain_us": {
            "row kernel, 1 rows": 250.0, "row kernel, 2 rows": 260.0, "torch": 300.0
        },
        "rejected": {"row kernel, 4 rows": "out of resource: shared memory"},
    }  # fmt: skip


def test_only_a_single_row_has_a_kernel() -> None:
    assert call(1).product == Product(32, 64) and call(2).product is None
