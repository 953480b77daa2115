"""Mixtures of experts: every way to compute them gives the same sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers import MixtralConfig, MixtralForCausalLM

from specbench.engine.decode import decode
from specbench.engine.layers import experts as ways
from specbench.engine.layers.experts import GROUPED_MM, Clamp, Experts
from specbench.engine.target import Target
from specbench.types import Request
from tests.engine.test_target import GROUPED
from tests.support.fake_cuda import CheckedGraphs
from tests.support.models import prompts
from tests.support.recorders import rerun
from tests.support.weights import build

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
                found = down @ (silu(gate) * up)
            else:
                assert experts.gate_up_bias is not None and experts.down_bias is not None
                gate, up = (both + experts.gate_up_bias[expert]).view(-1, 2).unbind(1)
                gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
                inner = gate * torch.sigmoid(1.7 * gate) * (up + 1)
                found = down @ inner + experts.down_bias[expert]
            out[row] += shares[row, place] * found
    return out


@pytest.mark.parametrize("num_rows", [1, 2, 9])
@pytest.mark.parametrize("way", ["_one_by_one", "_gathered", "_grouped"])
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
    torch.testing.assert_close(
        getattr(ways, way)(*given, silu), by_hand(*given), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("vanilla", torch.float32), ("eagle2", torch.float32), ("vanilla", torch.bfloat16)],
    ids=str,
)
def test_a_mixture_of_experts_can_be_captured(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    graphs = CheckedGraphs(rerun)
    config = MixtralConfig(**GROUPED, num_local_experts=4)
    target = Target(MixtralForCausalLM(config).to(dtype).eval(), graphs)
    decode(target, build(name, target, tmp_path), Request(prompts()[3], 8))
    assert graphs.failures == set()
    assert graphs.num_checked >= 1
    assert graphs.refused == set()
