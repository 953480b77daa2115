"""The engine's torch operations, and the check of kernels against them.

Mixtures of experts: every way to compute them gives the same sums.
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
from tests.support.fake_cuda import DEVICE, watching
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
    product = TORCH.project(x, weight, bias, residual=residual)
    assert product is residual
    torch.testing.assert_close(product, before + linear(x, weight, bias), rtol=1e-4, atol=1e-3)
    product = TORCH.project(x, weight, norm=norm, residual=before.clone())
    torch.testing.assert_close(product, before + linear(norm(x), weight), rtol=1e-4, atol=1e-3)
    assert product.is_contiguous()


def test_emulated_bfloat16_is_multiplied_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes = (LEAST_ROWS, 64), (40, 64), (40,), (LEAST_ROWS, 2, 2, 16), (2, LEAST_ROWS, 16)
    x, weight, bias, queries, keys = (torch.randn(size).bfloat16() for size in sizes)
    for is_emulated in (False, True):
        monkeypatch.setattr(emulated, "emulates_bfloat16", lambda to=is_emulated: to)
        wide = linear(x.float(), weight.float(), bias.float())
        product = TORCH.project(x, weight, bias)
        added = TORCH.project(x, weight, residual=bias.repeat(LEAST_ROWS, 1))
        attended = causal(queries, keys, keys, PLAIN, None)
        exact = causal(queries.float(), keys.float(), keys.float(), PLAIN, None)
        for actual, other in ((product, wide), (added, wide), (attended, exact)):
            torch.testing.assert_close(actual, other.bfloat16(), rtol=2e-2, atol=1e-2)
        assert not is_emulated or torch.equal(attended, exact.bfloat16())


def test_the_check_of_operations_includes_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a CPU, experts are read on the host. Record the operations that a GPU would run.
    monkeypatch.setattr(ways, "_one_by_one", ways._gathered)

    class Off(TraceRecorder):
        """A recorder with wrong outputs."""

        def __init__(self, added: float) -> None:
            self.added = added

        def __call__(self, *given: Any, **named: Any) -> Recording:
            recording = super().__call__(*given, **named)
            return Recording(
                tuple(part + self.added for part in recording.outputs), recording.replay
            )

    class Failing(TraceRecorder):
        def __call__(self, *given: Any, **named: Any) -> Recording:
            raise RuntimeError("operation not permitted when stream is capturing")

    assert unsupported_reason(Ops(), CPU, torch.float32, TraceRecorder()) is None
    recorders = Off(1), Off(torch.nan), Failing()
    *off, failing = (
        unsupported_reason(Ops(), CPU, torch.float32, recorder) for recorder in recorders
    )
    assert all("the norm of torch, recorded, is off by" in (reason or "") for reason in off)
    assert failing is not None and failing.startswith("torch, recorded, fails: operation not")
    assert unsupported_reason(Ops(), CPU, torch.float64) == "there are no kernels for float64"


CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
NUM_EXPERTS, HIDDEN, INNER = 5, 32, 16


def drawn(num_rows: int) -> tuple[Tensor, Experts, Tensor, Tensor]:
    """Rows, experts, two chosen experts for each row, and their shares."""
    torch.manual_seed(num_rows)
    experts = Experts(
        torch.randn(NUM_EXPERTS, 2 * INNER, HIDDEN), torch.randn(NUM_EXPERTS, HIDDEN, INNER)
    )
    shares, ids = torch.rand(num_rows, NUM_EXPERTS).topk(2)
    return torch.randn(num_rows, HIDDEN), experts, ids, shares


def by_hand(x: Tensor, experts: Experts, ids: Tensor, shares: Tensor) -> Tensor:
    """The sums, one row and one expert at a time."""
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for place, expert in enumerate(ids[row].tolist()):
            both, down = experts.gate_up[expert] @ x[row], experts.down[expert]
            if experts.clamp is None:
                gate, up = both.chunk(2)
                result = down @ (silu(gate) * up)
            else:
                assert experts.gate_up_bias is not None and experts.down_bias is not None
                gate, up = (both + experts.gate_up_bias[expert]).view(-1, 2).unbind(1)
                gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
                inner = gate * torch.sigmoid(1.7 * gate) * (up + 1)
                result = down @ inner + experts.down_bias[expert]
            out[row] += shares[row, place] * result
    return out


@pytest.mark.parametrize("num_rows", [1, 2, 9])
@pytest.mark.parametrize("way", ["_one_by_one", "_gathered", "_grouped", "_by_all"])
@pytest.mark.parametrize("is_clamped", [False, True])
def test_every_way_gives_the_sums_of_the_chosen_experts(
    way: str, num_rows: int, is_clamped: bool
) -> None:
    if way == "_grouped" and GROUPED_MM is None:
        pytest.skip("this torch has no grouped_mm")
    x, experts, ids, shares = drawn(num_rows)
    if is_clamped:
        biases = torch.randn(NUM_EXPERTS, 2 * INNER), torch.randn(NUM_EXPERTS, HIDDEN)
        experts = replace(
            experts, gate_up_bias=biases[0], down_bias=biases[1], clamp=Clamp(1.7, 2.0)
        )
    given = x, experts, ids, shares
    torch.testing.assert_close(getattr(ways, way)(*given, silu), by_hand(*given), **CLOSE)


def test_rows_in_chunks_and_experts_that_overflow_give_the_same_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, experts, ids, shares = drawn(9)
    expected = by_hand(x, experts, ids, shares)
    monkeypatch.setattr(ways, "CHUNK_BYTES", 4 * NUM_EXPERTS * (2 * INNER + HIDDEN) * 4)
    torch.testing.assert_close(ways._by_all(x, experts, ids, shares, silu), expected, **CLOSE)
    unused = torch.isin(torch.arange(NUM_EXPERTS), ids[:1]).logical_not().nonzero()[0]
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
    sizes = (num_rows, hidden), (num_experts, 2 * inner, hidden), (num_experts, hidden, inner)

    with watching(capability) as watch:
        x, gate_up, down = (torch.empty(size, dtype=dtype, device=DEVICE) for size in sizes)
        ids = torch.empty(num_rows, k, dtype=torch.long, device=DEVICE)
        shares = x.new_empty(num_rows, k)
        watch.most_bytes = 0
        ways.mix(x, Experts(gate_up, down), ids, shares, silu)
    weights = num_experts * 3 * hidden * inner * dtype.itemsize
    results = num_rows * k * 2 * inner * dtype.itemsize
    assert watch.most_bytes <= max(weights / 3, ways.CHUNK_BYTES, results)
