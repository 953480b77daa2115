"""The engine's torch operations, and the check of kernels against them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from specbench.engine.graphs.recorder import Recording
from specbench.engine.kernels.pick_ops import unsupported_reason
from specbench.engine.layers import experts
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import TORCH, Ops
from tests.support.tracing import TraceRecorder

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 2, 7])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_rows", [1, 2, 64, 65])
def test_large_products_are_the_same_in_parts(threads: int, num_rows: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(num_rows, 700), torch.randn(1800, 700), torch.randn(1800)
    before, norm = torch.randn(num_rows, 1800), Norm(torch.rand(700) + 0.5, 1e-5)
    residual = before.clone()
    found = TORCH.project(x, weight, bias, residual=residual)
    assert found is residual
    torch.testing.assert_close(found, before + linear(x, weight, bias), rtol=1e-4, atol=1e-3)
    found = TORCH.project(x, weight, norm=norm, residual=before.clone())
    torch.testing.assert_close(found, before + linear(norm(x), weight), rtol=1e-4, atol=1e-3)
    assert found.is_contiguous()


@pytest.mark.parametrize("has_bias", [False, True])
def test_each_row_has_a_product_of_its_own(has_bias: bool) -> None:
    x, weights, biases = torch.randn(3, 8), torch.randn(3, 5, 8), torch.randn(3, 5)
    found = TORCH.project_each(x, weights, biases if has_bias else None)
    for i in range(3):
        expected = linear(x[i], weights[i], biases[i] if has_bias else None)
        torch.testing.assert_close(found[i], expected)


def test_the_check_of_operations_includes_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a CPU, experts are read on the host. Record the way that a GPU would take.
    monkeypatch.setattr(experts, "_one_by_one", experts._gathered)

    class Off(TraceRecorder):
        """A recorder with wrong outputs."""

        def __call__(self, *given: Any, **named: Any) -> Recording:
            made = super().__call__(*given, **named)
            return Recording(tuple(part + 1 for part in made.outputs), made.replay)

    class Failing(TraceRecorder):
        def __call__(self, *given: Any, **named: Any) -> Recording:
            raise RuntimeError("operation not permitted when stream is capturing")

    assert unsupported_reason(Ops(), CPU, torch.float32, TraceRecorder()) is None
    off, failing = (
        unsupported_reason(Ops(), CPU, torch.float32, made()) for made in (Off, Failing)
    )
    assert off is not None and "the norm of torch, recorded, is off by" in off
    assert failing is not None and failing.startswith("torch, recorded, fails: operation not")
