"""Attention: cuDNN's is disabled while specbench runs, and scores may be windowed or capped.

Torch's operation is compared with sums over one row and head at a time, also with sinks.
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
    for name in ("prefill", "forward"):
        original = getattr(Target, name)

        def call(*args: Any, original: Callable[..., Any] = original, **named: Any) -> Any:
            settings.append(cuda.cudnn_sdp_enabled())
            return original(*args, **named)

        monkeypatch.setattr(Target, name, call)
    return settings


def test_the_setting_is_restored_even_after_an_error(setting: bool) -> None:
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
    assert list(doctor.examine(RunSpec(device="cpu"), is_offline=True))
    assert len(seen) > 1 and not any(seen)
    assert cuda.cudnn_sdp_enabled() is setting


NUM_CACHED = 64
HEADS = Heads(num_kv=2, group=3, dim=16)
SINKS = torch.linspace(-1, 3, 6, dtype=torch.float64)
"""One per query head."""
SCORINGS = {
    "plain": PLAIN,
    "scale": Scoring(scale=0.5),
    "cap": Scoring(soft_cap=1.5),
    "sinks": Scoring(sinks=SINKS),
    "all": Scoring(scale=0.5, soft_cap=1.5, sinks=SINKS),
}


def by_hand(queries: Tensor, rows: CacheRows, sees: Tensor, scoring: Scoring) -> Tensor:
    """Attention of queries [n, width], one row and query head at a time.

    `sees` [n, cached rows] is True where a query sees a row of the cache.
    """
    outputs = []
    queries_by_head = queries.unflatten(1, (-1, HEADS.dim))  # [n, heads, dim]
    for query_of_heads, seen in zip(queries_by_head, sees, strict=True):
        for head, query in enumerate(query_of_heads):
            kv_head = head // HEADS.group
            keys = rows.keys[kv_head][seen]  # [num_seen, dim]
            values = rows.values[kv_head][seen]
            scores = keys @ query * (scoring.scale or HEADS.dim**-0.5)  # [num_seen]
            if scoring.soft_cap:
                scores = torch.tanh(scores / scoring.soft_cap) * scoring.soft_cap
            if scoring.sinks is not None:
                scores = torch.cat([scores, scoring.sinks[head : head + 1]])
            weights = scores.softmax(0)[: len(keys)]  # without the sink's
            outputs.append(weights @ values)
    return torch.stack(outputs).view(len(queries), -1)


def drawn(num_rows: int) -> tuple[Tensor, CacheRows]:
    """Random queries [num_rows, width], and a cache of `NUM_CACHED` random rows."""
    torch.manual_seed(0)
    rows = torch.randn(NUM_CACHED, 2 * HEADS.kv_width, dtype=torch.float64)
    queries = torch.randn(num_rows, HEADS.query_width, dtype=torch.float64)
    shape = (HEADS.num_kv, HEADS.dim)
    return queries, CacheRows.of(rows, key_shape=shape, value_shape=shape)


@pytest.mark.parametrize("window", [None, 1, 5, 30])
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_a_prompt_longer_than_a_block_attends_to_its_window(
    scoring: Scoring, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_attention, "BLOCK", 7)
    num_rows = 20
    queries, rows = drawn(num_rows)
    columns = torch.arange(NUM_CACHED)
    positions = torch.arange(num_rows)[:, None]
    sees = columns <= positions  # [num_rows, NUM_CACHED]
    if window is not None:
        sees &= columns > positions - window
    output = TORCH.attend(queries, rows, None, HEADS, scoring, window)
    torch.testing.assert_close(output, by_hand(queries, rows, sees, scoring))


@pytest.mark.parametrize("span", [CacheSpan(40), CacheSpan(64, is_exact=False)], ids=str)
@pytest.mark.parametrize("window", [None, 2, 5, 30])
@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_a_tree_attends_to_its_ancestors_in_the_window(
    scoring: Scoring, window: int | None, span: CacheSpan
) -> None:
    queries, rows = drawn(4)
    positions = torch.tensor([40, 41, 41, 42])  # a root, two children, and the first's child
    is_ancestor = torch.tensor(
        [
            [1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 0, 1, 0],
            [1, 1, 0, 1],
        ]
    ).bool()
    lowest = torch.finfo(torch.float64).min
    bias = torch.zeros(4, 4, dtype=torch.float64).masked_fill(~is_ancestor, lowest)
    mask = TreeMask(torch.tensor(40), bias, span, positions)

    sees = torch.zeros(4, NUM_CACHED, dtype=torch.bool)
    sees[:, :40] = True  # the committed rows
    sees[:, 40:44] = is_ancestor
    positions_of_rows = torch.cat([torch.arange(40), positions, torch.arange(20)])
    if window is not None:
        sees &= positions_of_rows > positions[:, None] - window
    output = TORCH.attend(queries, rows, mask, HEADS, scoring, window)
    torch.testing.assert_close(output, by_hand(queries, rows, sees, scoring))
