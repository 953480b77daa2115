"""cuDNN's attention is disabled while specbench runs, and restored afterwards.

Attention with windows, capped scores and sinks.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.backends import cuda

import specbench
from specbench.engine.layers import torch_attention
from specbench.engine.layers.operands import CacheRows, CacheSpan, Heads, TreeMask
from specbench.engine.layers.ops import TORCH
from specbench.engine.layers.torch_attention import (
    PLAIN,
    Scoring,
    attention_kernels,
    without_cudnn_attention,
)
from specbench.engine.target import Target
from specbench.measure import doctor
from specbench.measure.spec import RunSpec
from tests.support.checkpoint import save_checkpoint


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def setting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The user's setting of cuDNN's attention."""
    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(request.param)
    yield request.param
    cuda.enable_cudnn_sdp(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The setting that each forward and prefill sees."""
    settings: list[bool] = []

    def capture(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            settings.append(cuda.cudnn_sdp_enabled())
            return function(*args, **named)

        return call

    for name in ("prefill", "forward"):
        monkeypatch.setattr(Target, name, capture(getattr(Target, name)))
    return settings


def test_the_setting_comes_back_even_after_an_error(setting: bool) -> None:
    with pytest.raises(RuntimeError), without_cudnn_attention():
        assert "cudnn" not in attention_kernels()
        raise RuntimeError
    assert cuda.cudnn_sdp_enabled() is setting
    assert ("cudnn" in attention_kernels()) is setting


@pytest.mark.parametrize("setting", [True], indirect=True)
def test_specbench_load_and_doctor_run_without_cudnns_attention(
    setting: bool, seen: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = specbench.load(str(save_checkpoint(tmp_path)), "pld", template="none")
    model.generate("ab ab ab", max_new_tokens=6)
    assert len(seen) > 1 and not any(seen)
    seen.clear()
    monkeypatch.setattr(doctor, "PROMPTS", doctor.PROMPTS[:1])
    monkeypatch.setattr(doctor, "NUM_TOKENS", 4)
    diagnoses = list(doctor.examine(RunSpec(device="cpu"), is_offline=True))
    assert diagnoses and len(seen) > 1 and not any(seen)
    assert cuda.cudnn_sdp_enabled() is setting


HEADS = Heads(2, 3, 16)
SCORINGS = {
    "plain": PLAIN,
    "scale": Scoring(0.5),
    "cap": Scoring(soft_cap=1.5),
    "sinks": Scoring(sinks=torch.linspace(-1, 3, 6, dtype=torch.float64)),
    "all": Scoring(0.5, 1.5, torch.linspace(-1, 3, 6, dtype=torch.float64)),
}


def by_hand(queries: Tensor, rows: CacheRows, sees: Tensor, scoring: Scoring) -> Tensor:
    """Attention, computed for one row and query head at a time. `sees` is [n, rows]."""
    outs = []
    for row, seen in zip(queries.unflatten(1, (-1, HEADS.dim)), sees, strict=True):
        for head, query in enumerate(row):
            keys, values = (part[head // HEADS.group][seen] for part in (rows.keys, rows.values))
            scores = keys @ query * (scoring.scale or HEADS.dim**-0.5)
            if scoring.soft_cap:
                scores = torch.tanh(scores / scoring.soft_cap) * scoring.soft_cap
            if scoring.sinks is not None:
                scores = torch.cat([scores, scoring.sinks[head : head + 1]])
            outs.append(scores.softmax(0)[: len(keys)] @ values)
    return torch.stack(outs).view(len(queries), -1)


def drawn(num_rows: int) -> tuple[Tensor, CacheRows]:
    torch.manual_seed(0)
    rows = torch.randn(64, 2 * HEADS.kv_width, dtype=torch.float64)
    queries = torch.randn(num_rows, HEADS.query_width, dtype=torch.float64)
    return queries, CacheRows.of(rows, *[(HEADS.num_kv, HEADS.dim)] * 2)


@pytest.mark.parametrize("window", [None, 1, 5, 30])
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_a_prompt_longer_than_a_block_attends_to_its_window(
    scoring: Scoring, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_attention, "BLOCK", 7)
    queries, rows = drawn(20)
    places = torch.arange(20)
    sees = places <= places[:, None]
    if window is not None:
        sees &= places > places[:, None] - window
    seen = torch.zeros(20, 64, dtype=torch.bool)
    seen[:, :20] = sees
    output = TORCH.attend(queries, rows, None, HEADS, scoring, window)
    torch.testing.assert_close(output, by_hand(queries, rows, seen, scoring))


@pytest.mark.parametrize("span", [CacheSpan(40), CacheSpan(64, is_exact=False)], ids=str)
@pytest.mark.parametrize("window", [None, 2, 5, 30])
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_a_tree_attends_to_its_ancestors_in_the_window(
    scoring: Scoring, window: int | None, span: CacheSpan
) -> None:
    queries, rows = drawn(4)
    positions = torch.tensor([40, 41, 41, 42])  # two children, and a grandchild of the first
    sees = torch.zeros(4, 64, dtype=torch.bool)
    sees[:, :40] = True
    sees[:, 40:44] = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool()
    bias = torch.zeros(4, 4).double().masked_fill(~sees[:, 40:44], torch.finfo(torch.float64).min)
    columns = torch.cat([torch.arange(40), positions, torch.arange(20)])
    if window is not None:
        sees &= columns > positions[:, None] - window
    mask = TreeMask(torch.tensor(40), bias, span, positions)
    output = TORCH.attend(queries, rows, mask, HEADS, scoring, window)
    torch.testing.assert_close(output, by_hand(queries, rows, sees, scoring))
