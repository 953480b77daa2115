"""The engine's torch operations, and the check of kernels against them.

Every way to compute mixtures of experts gives the same sums.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from specbench.engine.graphs.recorder import Recording
from specbench.engine.kernels.pick_ops import unsupported_reason
from specbench.engine.layers import emulated
from specbench.engine.layers import experts as ways
from specbench.engine.layers.emulated import LEAST_ROWS
from specbench.engine.layers.experts import GROUPED_MM, Clamp, Experts
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import TORCH, Ops
from specbench.engine.layers.torch_attention import PLAIN, causal
from tests.support.devices import CPU
from tests.support.fake_cuda import DEVICE, watching
from tests.support.tracing import TraceRecorder


@pytest.fixture(params=[1, 2, 7])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_rows", [1, 2, 64, 65])
def test_large_products_in_parts_are_the_same(threads: int, num_rows: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(num_rows, 700)
    weight = torch.randn(1800, 700)
    bias = torch.randn(1800)
    before = torch.randn(num_rows, 1800)
    norm = Norm(torch.rand(700) + 0.5, 1e-5)

    residual = before.clone()
    total = TORCH.project(x, weight, bias, residual=residual)
    assert total is residual
    expected = before + linear(x, weight, bias)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)

    total = TORCH.project(x, weight, norm=norm, residual=before.clone())
    expected = before + linear(norm(x), weight)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)
    assert total.is_contiguous()


def test_emulated_bfloat16_is_multiplied_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(LEAST_ROWS, 64).bfloat16()
    weight = torch.randn(40, 64).bfloat16()
    bias = torch.randn(40).bfloat16()
    queries = torch.randn(LEAST_ROWS, 2, 2, 16).bfloat16()
    keys = torch.randn(2, LEAST_ROWS, 16).bfloat16()
    for is_emulated in (False, True):
        monkeypatch.setattr(emulated, "emulates_bfloat16", lambda to=is_emulated: to)
        product = TORCH.project(x, weight, bias)
        added = TORCH.project(x, weight, residual=bias.repeat(LEAST_ROWS, 1))
        exact_product = linear(x.float(), weight.float(), bias.float()).bfloat16()
        torch.testing.assert_close(product, exact_product, rtol=2e-2, atol=1e-2)
        torch.testing.assert_close(added, exact_product, rtol=2e-2, atol=1e-2)

        attended = causal(queries, keys, keys, PLAIN, None)
        exactly_attended = causal(queries.float(), keys.float(), keys.float(), PLAIN, None)
        torch.testing.assert_close(attended, exactly_attended.bfloat16(), rtol=2e-2, atol=1e-2)
        if is_emulated:
            assert torch.equal(attended, exactly_attended.bfloat16())


def test_the_check_of_operations_includes_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a CPU, experts are read on the host. Record the operations that a GPU would run.
    monkeypatch.setattr(ways, "_one_by_one", ways._gathered)

    class Off(TraceRecorder):
        """A recorder with wrong outputs."""

        def __init__(self, added: float) -> None:
            self.added = added

        def __call__(self, *given: Any, **named: Any) -> Recording:
            recording = super().__call__(*given, **named)
            outputs = tuple(output + self.added for output in recording.outputs)
            return Recording(outputs, recording.replay)

    class Failing(TraceRecorder):
        def __call__(self, *given: Any, **named: Any) -> Recording:
            raise RuntimeError("operation not permitted when stream is capturing")

    assert unsupported_reason(Ops(), CPU, torch.float32, TraceRecorder()) is None
    for recorder in (Off(1), Off(torch.nan)):
        reason = unsupported_reason(Ops(), CPU, torch.float32, recorder)
        assert reason is not None
        assert "the norm of torch, recorded, is off by" in reason
    reason = unsupported_reason(Ops(), CPU, torch.float32, Failing())
    assert reason is not None
    assert reason.startswith("torch, recorded, fails: operation not")
    assert unsupported_reason(Ops(), CPU, torch.float64) == "there are no kernels for float64"


CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
NUM_EXPERTS = 5
HIDDEN = 32
INNER = 16


def drawn(num_rows: int) -> tuple[Tensor, Experts, Tensor, Tensor]:
    """Random rows, experts, the two experts chosen for each row, and their shares."""
    torch.manual_seed(num_rows)
    gate_up = torch.randn(NUM_EXPERTS, 2 * INNER, HIDDEN)
    down = torch.randn(NUM_EXPERTS, HIDDEN, INNER)
    experts = Experts(gate_up, down)
    shares, ids = torch.rand(num_rows, NUM_EXPERTS).topk(2)
    return torch.randn(num_rows, HIDDEN), experts, ids, shares


def by_hand(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor) -> Tensor:
    """The sums, computed for one row and one expert at a time."""
    sums = torch.zeros_like(x)
    for row in range(len(x)):
        for choice, expert in enumerate(ids[row].tolist()):
            gate_up = experts.gate_up[expert] @ x[row]
            if experts.clamp is None:
                gate, up = gate_up.chunk(2)
                output = experts.down[expert] @ (silu(gate) * up)
            else:
                assert experts.gate_up_bias is not None
                assert experts.down_bias is not None
                gate_up = gate_up + experts.gate_up_bias[expert]
                gate, up = gate_up.view(-1, 2).unbind(1)
                gate = gate.clamp(max=2.0)
                up = up.clamp(-2.0, 2.0)
                inner = gate * torch.sigmoid(1.7 * gate) * (up + 1)
                output = experts.down[expert] @ inner + experts.down_bias[expert]
            sums[row] += shares[row, choice] * output
    return sums


@pytest.mark.parametrize("num_rows", [1, 2, 9, 60])
@pytest.mark.parametrize("way", ["_one_by_one", "_gathered", "_grouped", "_by_all"])
@pytest.mark.parametrize("is_clamped", [False, True])
def test_every_way_gives_the_sums_of_the_chosen_experts(
    way: str, num_rows: int, is_clamped: bool
) -> None:
    if way == "_grouped" and GROUPED_MM is None:
        pytest.skip("this torch has no grouped_mm")
    x, experts, ids, shares = drawn(num_rows)
    if is_clamped:
        experts = replace(
            experts,
            gate_up_bias=torch.randn(NUM_EXPERTS, 2 * INNER),
            down_bias=torch.randn(NUM_EXPERTS, HIDDEN),
            clamp=Clamp(1.7, 2.0),
        )
    sums = getattr(ways, way)(x, experts, ids, shares, silu)
    torch.testing.assert_close(sums, by_hand(x, experts, ids, shares), **CLOSE)


def test_rows_in_chunks_and_experts_that_overflow_give_the_same_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, experts, ids, shares = drawn(9)
    expected = by_hand(x, experts, ids, shares)
    bytes_per_row = NUM_EXPERTS * (2 * INNER + HIDDEN) * 4
    monkeypatch.setattr(ways, "CHUNK_BYTES", 4 * bytes_per_row)
    sums = ways._by_all(x, experts, ids, shares, silu)
    torch.testing.assert_close(sums, expected, **CLOSE)

    is_used = torch.isin(torch.arange(NUM_EXPERTS), ids[:1])
    unused = is_used.logical_not().nonzero()[0]
    experts.down[unused] = torch.inf
    sums = ways._by_all(x[:1], experts, ids[:1], shares[:1], silu)
    torch.testing.assert_close(sums, expected[:1], **CLOSE)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 60, 8000])
@pytest.mark.parametrize("shape", [(8, 2, 4096, 14336), (128, 8, 2048, 768), (32, 4, 2880, 2880)])
def test_no_weight_is_copied_for_each_row(
    shape: tuple[int, ...], num_rows: int, dtype: torch.dtype, capability: tuple[int, int]
) -> None:
    num_experts, k, hidden, inner = shape

    def empty(*size: int) -> Tensor:
        return torch.empty(size, dtype=dtype, device=DEVICE)

    with watching(capability) as watch:
        x = empty(num_rows, hidden)
        gate_up = empty(num_experts, 2 * inner, hidden)
        down = empty(num_experts, hidden, inner)
        ids = torch.empty(num_rows, k, dtype=torch.long, device=DEVICE)
        shares = x.new_empty(num_rows, k)
        watch.most_bytes = 0
        ways.mix(x, Experts(gate_up, down), ids, shares, silu)
    weights = num_experts * 3 * hidden * inner * dtype.itemsize
    results = num_rows * k * 2 * inner * dtype.itemsize
    assert watch.most_bytes <= max(weights / 3, ways.CHUNK_BYTES, results)
