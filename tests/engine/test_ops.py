"""The engine's torch operations, and the check of kernels against them.

Every way to compute mixtures of experts gives the same sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
    before = torch.randn(num_rows, 1800)  # the residual
    norm = Norm(torch.rand(700) + 0.5, eps=1e-5)

    residual = before.clone()
    total = TORCH.project(x, weight, bias, residual=residual)
    assert total is residual
    expected = before + linear(x, weight, bias)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)

    total = TORCH.project(x, weight, norm=norm, residual=before.clone())
    expected = before + linear(norm(x), weight)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)
    assert total.is_contiguous()


CLOSE_IN_BFLOAT16: dict[str, Any] = {"rtol": 2e-2, "atol": 1e-2}


@pytest.mark.parametrize("is_emulated", [False, True])
def test_products_in_bfloat16_are_close_to_those_in_float32(
    monkeypatch: pytest.MonkeyPatch, is_emulated: bool
) -> None:
    monkeypatch.setattr(emulated, "emulates_bfloat16", lambda: is_emulated)
    torch.manual_seed(0)
    x = torch.randn(LEAST_ROWS, 64).bfloat16()
    weight = torch.randn(40, 64).bfloat16()
    bias = torch.randn(40).bfloat16()
    in_float32 = linear(x.float(), weight.float(), bias.float())
    product = TORCH.project(x, weight, bias)
    total = TORCH.project(x, weight, residual=bias.repeat(LEAST_ROWS, 1))
    torch.testing.assert_close(product, in_float32.bfloat16(), **CLOSE_IN_BFLOAT16)
    torch.testing.assert_close(total, in_float32.bfloat16(), **CLOSE_IN_BFLOAT16)


@pytest.mark.parametrize("is_emulated", [False, True])
def test_attention_in_emulated_bfloat16_is_computed_in_float32(
    monkeypatch: pytest.MonkeyPatch, is_emulated: bool
) -> None:
    monkeypatch.setattr(emulated, "emulates_bfloat16", lambda: is_emulated)
    torch.manual_seed(0)
    queries = torch.randn(LEAST_ROWS, 2, 2, 16).bfloat16()  # [n, num_kv, group, dim]
    keys = torch.randn(2, LEAST_ROWS, 16).bfloat16()  # [num_kv, n, dim]
    attended = causal(queries, keys, values=keys, scoring=PLAIN, window=None)
    in_float32 = causal(
        queries.float(),
        keys.float(),
        values=keys.float(),
        scoring=PLAIN,
        window=None,
    )
    expected = in_float32.bfloat16()
    torch.testing.assert_close(attended, expected, **CLOSE_IN_BFLOAT16)
    if is_emulated:
        assert torch.equal(attended, expected)


@dataclass
class OffRecorder(TraceRecorder):
    """A recorder whose outputs are off by a number."""

    offset: float

    def __call__(self, *args: Any, **kwargs: Any) -> Recording:
        recording = super().__call__(*args, **kwargs)
        outputs = tuple(output + self.offset for output in recording.outputs)
        return Recording(outputs, recording.replay)


def failing_recorder(*args: Any, **kwargs: Any) -> Recording:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def experts_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute experts as a GPU would. A CPU reads their ids, which cannot be recorded."""
    monkeypatch.setattr(ways, "_one_by_one", ways._gathered)


@pytest.mark.usefixtures("experts_as_on_a_gpu")
def test_torchs_own_operations_pass_their_check_when_recorded() -> None:
    assert unsupported_reason(Ops(), CPU, torch.float32, recorder=TraceRecorder()) is None


@pytest.mark.usefixtures("experts_as_on_a_gpu")
@pytest.mark.parametrize("offset", [1, torch.nan])
def test_operations_with_wrong_results_when_recorded_are_refused(offset: float) -> None:
    reason = unsupported_reason(Ops(), CPU, torch.float32, recorder=OffRecorder(offset))
    assert reason is not None
    assert "the norm of torch, recorded, is off by" in reason


def test_operations_that_cannot_be_recorded_are_refused() -> None:
    reason = unsupported_reason(Ops(), CPU, torch.float32, recorder=failing_recorder)
    assert reason is not None
    assert reason.startswith("torch, recorded, fails: operation not")


def test_there_are_no_kernels_for_float64() -> None:
    assert unsupported_reason(Ops(), CPU, torch.float64) == "there are no kernels for float64"


CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
NUM_EXPERTS = 5
HIDDEN = 32
INNER = 16


class ExpertInputs(NamedTuple):
    """Rows, the two experts that are chosen for each, and the shares of these in its sum."""

    x: Tensor  # [rows, HIDDEN]
    experts: Experts
    ids: Tensor  # [rows, 2]
    shares: Tensor  # [rows, 2]


def random_inputs(num_rows: int) -> ExpertInputs:
    torch.manual_seed(num_rows)
    gate_up = torch.randn(NUM_EXPERTS, 2 * INNER, HIDDEN)
    down = torch.randn(NUM_EXPERTS, HIDDEN, INNER)
    shares, ids = torch.rand(num_rows, NUM_EXPERTS).topk(2)
    return ExpertInputs(
        x=torch.randn(num_rows, HIDDEN),
        experts=Experts(gate_up, down),
        ids=ids,
        shares=shares,
    )


def output_of(experts: Experts, expert: int, row: Tensor) -> Tensor:
    """The output [HIDDEN] of an expert for a row [HIDDEN]."""
    gate_up = experts.gate_up[expert] @ row  # [2 * INNER]
    down = experts.down[expert]  # [HIDDEN, INNER]
    if experts.clamp is None:
        gate, up = gate_up.chunk(2)
        return down @ (silu(gate) * up)
    assert experts.gate_up_bias is not None
    assert experts.down_bias is not None
    # gpt-oss: rows of gate and up alternate, inner = gate * sigmoid(alpha * gate) * (up + 1)
    gate_up = gate_up + experts.gate_up_bias[expert]
    gate = gate_up[::2].clamp(max=2.0)
    up = gate_up[1::2].clamp(-2.0, 2.0)
    inner = gate * torch.sigmoid(1.7 * gate) * (up + 1)
    return down @ inner + experts.down_bias[expert]


def sums_by_hand(inputs: ExpertInputs) -> Tensor:
    """The sums [rows, HIDDEN], computed for one row and one expert at a time."""
    sums = torch.zeros_like(inputs.x)
    for row, expert_ids in enumerate(inputs.ids.tolist()):
        for choice, expert in enumerate(expert_ids):
            output = output_of(inputs.experts, expert, inputs.x[row])
            sums[row] += inputs.shares[row, choice] * output
    return sums


@pytest.mark.parametrize("num_rows", [1, 2, 9, 60])
@pytest.mark.parametrize("way", ["_one_by_one", "_gathered", "_grouped", "_by_all"])
@pytest.mark.parametrize("is_clamped", [False, True])
def test_every_way_gives_the_sums_of_the_chosen_experts(
    way: str, num_rows: int, is_clamped: bool
) -> None:
    if way == "_grouped" and GROUPED_MM is None:
        pytest.skip("this torch has no grouped_mm")
    inputs = random_inputs(num_rows)
    if is_clamped:
        clamped = replace(
            inputs.experts,
            gate_up_bias=torch.randn(NUM_EXPERTS, 2 * INNER),
            down_bias=torch.randn(NUM_EXPERTS, HIDDEN),
            clamp=Clamp(1.7, 2.0),
        )
        inputs = inputs._replace(experts=clamped)
    sums = getattr(ways, way)(*inputs, act=silu)
    torch.testing.assert_close(sums, sums_by_hand(inputs), **CLOSE)


def test_rows_in_chunks_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = random_inputs(9)
    bytes_per_row = NUM_EXPERTS * (2 * INNER + HIDDEN) * 4
    monkeypatch.setattr(ways, "CHUNK_BYTES", 4 * bytes_per_row)
    sums = ways._by_all(*inputs, act=silu)
    torch.testing.assert_close(sums, sums_by_hand(inputs), **CLOSE)


def test_an_expert_that_was_not_chosen_may_overflow() -> None:
    inputs = random_inputs(1)
    expected = sums_by_hand(inputs)
    is_chosen = torch.isin(torch.arange(NUM_EXPERTS), inputs.ids)
    inputs.experts.down[~is_chosen] = torch.inf
    sums = ways._by_all(*inputs, act=silu)
    torch.testing.assert_close(sums, expected, **CLOSE)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 60, 8000])
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((8, 2, 4096, 14336), id="Mixtral-8x7B"),
        pytest.param((128, 8, 2048, 768), id="Qwen3-30B-A3B"),
        pytest.param((32, 4, 2880, 2880), id="gpt-oss-20b"),
    ],
)
def test_no_weight_is_copied_for_each_row(
    sizes: tuple[int, ...], num_rows: int, dtype: torch.dtype, capability: tuple[int, int]
) -> None:
    num_experts, k, hidden, inner = sizes

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=DEVICE)

    with watching(capability) as watch:
        x = empty(num_rows, hidden)
        gate_up = empty(num_experts, 2 * inner, hidden)
        down = empty(num_experts, hidden, inner)
        shares = empty(num_rows, k)
        ids = torch.empty_like(shares, dtype=torch.long)
        watch.most_bytes = 0
        ways.mix(x, Experts(gate_up, down), ids, shares, act=silu)
    weight_bytes = gate_up.nbytes + down.nbytes
    result_bytes = num_rows * k * 2 * inner * dtype.itemsize  # gate and up of each pair
    assert watch.most_bytes <= max(weight_bytes / 3, ways.CHUNK_BYTES, result_bytes)
