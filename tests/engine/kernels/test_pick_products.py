"""The choice of kernels for a model's products, with made-up times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from specbench.engine.kernels.pick_ops import off_by, pick_launches
from specbench.engine.kernels.products import LinearCall, Product
from specbench.engine.layers import stack
from specbench.engine.layers.ops import TORCH, Ops
from specbench.engine.layers.stack import Stack
from tests.support.models import random_llama

pytest.importorskip("triton", reason="triton is not installed")

from triton.runtime.errors import OutOfResources

from specbench.engine.kernels.triton_ops import TritonOps

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 70}
QKV, OUTPUT, HEAD = (128, 64, False), (64, 64, False), (70, 64, False)
GATE_UP, DOWN = (96, 64, True), (64, 96, False)


def test_numbers_that_overflow_in_both_results_are_no_difference() -> None:
    right = torch.tensor([3.0, 4.0, -torch.inf, torch.inf]).half()
    assert off_by(right.clone(), right) == 0
    assert off_by(right + torch.tensor([0.5, 0, 0, 0]).half(), right) == pytest.approx(0.1)
    for wrong in (torch.inf, 4.0, torch.nan):
        found = right.clone()
        found[2] = wrong
        assert not off_by(found, right) <= 1e-2


class Timer:
    """A fake timer: the time of a call is the sum of its products' times."""

    def __init__(self, ops: TritonOps, seconds: Callable[[Product, bool], float]) -> None:
        self._ops = ops
        self._seconds = seconds
        self.num_works = 0

    def __call__(self, works: Sequence[Callable[[], Tensor]]) -> list[float]:
        return [self._time(work) for work in works]

    def _time(self, work: Callable[[], Tensor]) -> float:
        self.num_works += 1
        calls = self._ops.calls_in(work)
        products = [call.product for call in calls if call.product]
        return sum(self._seconds(product, self._ops.has_kernel(product)) for product in products)


class Quick(TritonOps):
    """Launches computed by torch: kernels are slow to interpret, and have their own tests."""

    norm, write_kv, attend = Ops.norm, Ops.write_kv, Ops.attend

    def launched(self, call: LinearCall) -> Tensor:
        return call.by(TORCH)

    def linear(self, call: LinearCall) -> Tensor:
        if self._linear_calls is not None:
            self._linear_calls.append(call)
        return call.by(TORCH)


def prepared(
    seconds: Callable[[Product, bool], float], ops: TritonOps | None = None
) -> tuple[TritonOps, Timer]:
    """Operations that choose kernels when a model's layers are built."""
    ops = ops or Quick(8)
    timer = Timer(ops, seconds)
    ops.measure_by(partial(pick_launches, timer=timer))
    Stack(random_llama(2, **SMALL).half().to(DEVICE), ops)
    return ops, timer


def kernel_is_fast(product: Product, is_kernel: bool) -> float:
    """The kernel is the fastest, except for the output, where torch is."""
    return 0.5 if is_kernel == (product != Product(*OUTPUT)) else 1.0


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "COMMITTED", 20)
    monkeypatch.setattr(stack, "CAPACITY", 32)


def test_every_product_of_a_model_gets_what_is_fastest_in_a_chain() -> None:
    ops, _ = prepared(kernel_is_fast)
    assert ops.fallbacks == {}
    assert not ops.has_kernel(Product(*OUTPUT))
    assert all(ops.has_kernel(Product(*one)) for one in (QKV, GATE_UP, DOWN, HEAD))
    told = ops.describe()["products"]
    assert len(told) == 5 and all(choice["chain_us"]["torch"] > 0 for choice in told)


def off(found: Tensor) -> Tensor:
    return found * 1.05


def too_large(found: Tensor) -> Tensor:
    raise OutOfResources(131072, 101376, "shared memory")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(off, "it is off by 5.0e-02"), (too_large, "out of resource: shared memory")],
)
def test_a_kernel_that_is_wrong_or_fails_is_rejected_with_the_reason_however_fast(
    fault: Callable[[Tensor], Tensor], reason: str
) -> None:
    class Faulty(Quick):
        def launched(self, call: LinearCall) -> Tensor:
            found = super().launched(call)
            return fault(found) if call.is_gated else found

    ops, _ = prepared(kernel_is_fast, Faulty(8))
    choice = ops.choices[Product(*GATE_UP)]
    assert not choice.is_kernel and ops.fallbacks == {}
    assert (choice.wrong or "").startswith(reason)
    assert ops.has_kernel(Product(*DOWN))


def test_a_second_model_of_the_same_shapes_measures_nothing() -> None:
    ops, timer = prepared(kernel_is_fast)
    before = timer.num_works
    Stack(random_llama(2, seed=1, **SMALL).half().to(DEVICE), ops)
    assert timer.num_works == before > 0


def test_without_measurements_the_kernels_are_used_with_a_reason() -> None:
    ops = Quick(8)

    def fail(works: Sequence[Callable[[], Tensor]]) -> Sequence[float]:
        raise RuntimeError("CUDA out of memory\nmore of it")

    ops.measure_by(partial(pick_launches, timer=fail))
    Stack(random_llama(2, **SMALL).half().to(DEVICE), ops)
    assert ops.choices == {} and ops.has_kernel(Product(*QKV))
    assert ops.reason == "launches are not measured: CUDA out of memory"


def test_torch_operations_have_no_kernels_to_choose() -> None:
    ops = Ops("no kernels")
    Stack(random_llama(2).float(), ops)
    assert ops.describe() == {"name": "torch", "reason": "no kernels"}
