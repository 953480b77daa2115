"""The kernels compute the same as torch. Without a GPU, Triton's interpreter runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import gelu, silu

from specbench.engine.execution import Execution
from specbench.engine.kernels import pick_ops
from specbench.engine.kernels.pick_ops import relative_error, unsupported_reason
from specbench.engine.layers.operands import CacheRows, CacheSpan, Heads, Norm, TreeMask
from specbench.engine.layers.ops import TORCH, gelu_tanh
from specbench.engine.layers.torch_attention import Scoring
from specbench.engine.target import Target
from specbench.engine.tree import TreeLayout
from specbench.types import Request
from tests.engine.test_target import random_model
from tests.packaging.shell import ROOT
from tests.support.models import prompts, random_llama
from tests.support.weights import decoded

pytest.importorskip("triton", reason="triton is not installed")

from specbench.engine.kernels import triton_ops
from specbench.engine.kernels.triton_ops import CHUNK, MAX_TOPK, MOST_FEW, TritonOps, is_row

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KERNELS = TritonOps(num_processors=8)


IS_INTERPRETED = not torch.cuda.is_available()
MANY_PROGRAMS = pytest.mark.slow  # tracing would slow the interpreter down
NO_BFLOAT16 = pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter multiplies no bfloat16")


@pytest.fixture(autouse=True)
def _no_kernel_has_failed() -> Iterator[None]:
    """Fail if an operation fell back to torch, since its comparison proves nothing."""
    yield
    assert KERNELS.fallbacks == {}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loops over smaller blocks, in fewer programs, which the interpreter runs in turn."""
    if IS_INTERPRETED:
        monkeypatch.setattr(triton_ops, "ROW_BLOCK", 128)
        monkeypatch.setattr(triton_ops, "EXPERT_BLOCK", 64)
        monkeypatch.setattr(triton_ops, "EXPERT_ROWS", 32)
        for name, size in {"HIDDEN": 144, "EXPERT_HIDDEN": 80, "VOCAB": 3000}.items():
            monkeypatch.setattr(pick_ops, name, size)


@MANY_PROGRAMS
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=NO_BFLOAT16)]
)
@pytest.mark.usefixtures("small_blocks")
def test_kernels_compute_the_same_as_torch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if IS_INTERPRETED and dtype.itemsize == 2:  # other blocks of attention for many rows alone
        monkeypatch.setattr(pick_ops, "TRIED", pick_ops.TRIED[::3])
    assert unsupported_reason(KERNELS, DEVICE, dtype) is None


@MANY_PROGRAMS
@pytest.mark.parametrize("heads", [Heads(3, 1, 16), Heads(2, 3, 32), Heads(1, 4, 24)])
@pytest.mark.parametrize("num_rows", [1, 2, 21])
def test_attention_sees_the_committed_rows_and_each_nodes_ancestors(
    heads: Heads, num_rows: int
) -> None:
    torch.manual_seed(num_rows)
    rows = torch.randn(512, 2 * heads.kv_width, device=DEVICE)
    cached = CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2)
    queries = torch.randn(num_rows, 2 * heads.query_width, device=DEVICE)[:, : heads.query_width]
    for start, num_before in ((0, 0), (5, 0), (70, 9), (300, 40)):
        num_more = num_before + num_rows
        sees = torch.rand(num_rows, num_more, device=DEVICE) < 0.4
        sees[:, num_before:].fill_diagonal_(True)
        bias = torch.zeros(sees.shape, device=DEVICE).masked_fill_(
            ~sees, torch.finfo(rows.dtype).min
        )
        for cache_span in (CacheSpan(start), CacheSpan(512, is_exact=False)):
            tree_mask = TreeMask(torch.tensor(start, device=DEVICE), bias, cache_span)
            expected = TORCH.attend(queries, cached, tree_mask, heads)
            torch.testing.assert_close(KERNELS.attend(queries, cached, tree_mask, heads), expected)


@MANY_PROGRAMS
@pytest.mark.parametrize("window", [None, 1000])
@pytest.mark.parametrize(("group", "num_rows"), [(1, 60), (4, 26), (8, 1)])
@pytest.mark.parametrize("start", [4_000, 33_000])
def test_attention_is_right_far_into_a_long_context(
    start: int, group: int, num_rows: int, window: int | None
) -> None:
    """Queries look for one key each, near and far, so that a part left out is seen."""
    heads = Heads(1, group, 16)
    torch.manual_seed(start + group)
    num_cached = start + 256
    rows = torch.randn(num_cached, 2 * heads.kv_width, device=DEVICE)
    layout = TreeLayout.from_parents([0, *range(num_rows - 1)], DEVICE)  # a chain
    queries = torch.randn(num_rows, heads.query_width, device=DEVICE)
    wanted = torch.linspace(0, start - 1, num_rows, dtype=torch.long, device=DEVICE)
    queries += 3 * rows[wanted, : heads.dim].repeat(1, group)  # the key of a row for each query
    cached = CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2)
    for cache_span in (CacheSpan(start), CacheSpan(num_cached, is_exact=False)):
        tree_mask = TreeMask(
            torch.tensor(start, device=DEVICE), layout.bias(rows.dtype),
            cache_span, layout.depths + start,
        )  # fmt: skip
        expected = TORCH.attend(queries, cached, tree_mask, heads, window=window)
        output = KERNELS.attend(queries, cached, tree_mask, heads, window=window)
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("window", [None, 3, 50, 200])
@pytest.mark.parametrize(
    "scoring", [Scoring(0.5, 2.0), Scoring(sinks=torch.tensor([1.0, -2, 8, 0]))]
)
def test_attention_knows_windows_caps_and_sinks(scoring: Scoring, window: int | None) -> None:
    heads = Heads(2, 2, 16)
    torch.manual_seed(0)
    rows = torch.randn(512, 2 * heads.kv_width, device=DEVICE)
    cached = CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2)
    layout = TreeLayout.from_parents([0, 0, 0, 1, 3, 4], DEVICE)
    queries = torch.randn(layout.num_nodes, heads.query_width, device=DEVICE)
    if scoring.sinks is not None:
        scoring = Scoring(sinks=scoring.sinks.to(DEVICE))
    for start in (0, 40, 300):
        tree_mask = TreeMask(
            torch.tensor(start, device=DEVICE), layout.bias(rows.dtype),
            CacheSpan(512, is_exact=False), layout.depths + start,
        )  # fmt: skip
        expected = TORCH.attend(queries, cached, tree_mask, heads, scoring, window)
        output = KERNELS.attend(queries, cached, tree_mask, heads, scoring, window)
        torch.testing.assert_close(output, expected)
        if window == 3 and start:
            wide = TORCH.attend(queries, cached, tree_mask, heads, scoring)
            assert (expected - wide).abs().max() > 0.1


def test_norms_with_wide_weights_are_added_to_a_residual() -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(3, 300, device=DEVICE).half() for _ in range(2))
    norm = Norm(torch.rand(300, device=DEVICE) + 0.5, 1e-5)
    normed = KERNELS.norm(x, norm, before := residual.clone())
    assert normed is before
    torch.testing.assert_close(normed, TORCH.norm(x, norm, residual), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(KERNELS.norm(x, norm), norm(x))


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_include_norm_bias_residual_and_gate(num_rows: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    x, before = (torch.randn(num_rows, size, device=DEVICE) for size in (1100, 37))
    weight = torch.randn(74, 1100, device=DEVICE)
    bias = torch.randn(74, device=DEVICE) if has_bias else None
    norm = Norm(torch.rand(1100, device=DEVICE) + 0.5, 1e-5)
    half = bias if bias is None else bias[:37]
    results = [
        (
            ops.project(x, weight[:37], half, norm=norm, residual=before.clone()),
            ops.project(x, weight[:37], half),
            ops.gated(x, weight, bias, norm, silu),
            ops.gated(x, weight, bias, norm, gelu),
            ops.gated(x, weight, bias, norm, gelu_tanh),
        )
        for ops in (KERNELS, TORCH)
    ]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_how_a_row_is_launched_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, weight, norm = (torch.randn(shape, device=DEVICE) for shape in ((1, 1300), (74, 1300), 1300))
    results = []
    for rows in (1, 2, 4):
        monkeypatch.setitem(triton_ops.ROWS, True, rows)
        results.append(KERNELS.gated(x, weight, None, Norm(norm, 1e-5), silu))
    assert all(torch.equal(out, results[0]) for out in results)
    assert results[0].abs().max() > 0


def test_only_a_dense_row_has_a_kernel() -> None:
    weight, row = torch.zeros(32, 64).bfloat16(), torch.zeros(1, 64).bfloat16()
    shifted = torch.zeros(32 * 64 + 1).bfloat16()[1:].view(32, 64)
    strided, apart = torch.zeros(32, 128).bfloat16()[:, :64], torch.zeros(1, 128).bfloat16()[:, ::2]
    assert is_row(row, weight) and is_row(row, weight, row)
    assert not is_row(torch.zeros(2, 64).bfloat16(), weight)
    assert not any(is_row(row, tensor) for tensor in (strided, shifted))
    assert not is_row(apart, weight) and not is_row(row, weight, torch.zeros(64, 2).t()[1:, ::2])


def test_numbers_that_overflow_in_both_results_are_no_difference() -> None:
    right = torch.tensor([3.0, 4.0, -torch.inf, torch.inf]).half()
    assert relative_error(right.clone(), right) == 0
    assert relative_error(right + torch.tensor([0.5, 0, 0, 0]).half(), right) == pytest.approx(0.1)
    for wrong in (torch.inf, 4.0, torch.nan):
        actual = right.clone()
        actual[2] = wrong
        assert not relative_error(actual, right) <= 1e-2


@pytest.mark.parametrize("vocab_size", [7, CHUNK, 2 * CHUNK + 100])
def test_topk_log_probabilities_equal_a_sort(vocab_size: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, vocab_size, device=DEVICE)
    logits[1] = -torch.inf
    logits[1, 2], logits[1, 5] = 1.0, 2.0
    logits[2, 1::2] = 9.0  # of equals the first
    k = min(vocab_size, 12)
    log_probs, ids = KERNELS.topk_logprobs(logits, k)
    expected = logits.log_softmax(-1).sort(descending=True, stable=True)
    assert ids.dtype == torch.long
    assert torch.equal(ids[0], expected.indices[0, :k]) and ids[1].tolist()[:2] == [5, 2]
    assert torch.equal(ids[2], expected.indices[2, :k])
    assert all(len(set(row)) == k for row in ids.tolist())
    torch.testing.assert_close(log_probs[::2], expected.values[::2, :k])
    torch.testing.assert_close(log_probs[1, :2], expected.values[1, :2])


@pytest.mark.parametrize(("size", "k"), [(1, 1), (100, 10), (811, 60), (MOST_FEW + 1, 3)])
def test_topk_values_equal_a_sort(size: int, k: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(size, dtype=torch.float64, device=DEVICE).round(decimals=3)
    values[0] = torch.inf
    values[1 : size // 2 : 7] = -torch.inf
    highest, places = KERNELS.topk(values, k)
    expected = values.sort(descending=True, stable=True)
    assert torch.equal(highest, expected.values[:k])
    assert torch.equal(values[places], highest) and len(set(places.tolist())) == k
    if size <= MOST_FEW:
        assert torch.equal(places, expected.indices[:k])


def test_a_k_too_large_for_the_kernel_is_computed_by_torch() -> None:
    logits = torch.randn(2, 300, device=DEVICE)
    k = MAX_TOPK + 1
    assert torch.equal(KERNELS.topk_logprobs(logits, k)[0], TORCH.topk_logprobs(logits, k)[0])


SMALL = {"total_tokens": "8", "depth": "2", "top_k": "3"}


@MANY_PROGRAMS
@pytest.mark.parametrize(
    ("name", "layers", "options"),
    [
        ("vanilla", 2, {}),
        ("hydra", 2, {"tree": "2x2"}),
        ("eagle2", 2, SMALL),
        ("eagle3", 8, SMALL),
        ("peagle", 4, {"num_tokens": "3"}),
        ("dflash", 4, {"num_tokens": "3"}),
    ],
)
def test_tokens_and_steps_are_the_same_with_kernels(
    name: str, layers: int, options: dict[str, str], tmp_path: Path
) -> None:
    heads = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = random_llama(layers, **heads).float().to(DEVICE)
    targets = Target(deepcopy(model)), Target(model, Execution(KERNELS))
    requests = [Request(prompts()[0], 3)]
    plain, fused = (decoded(target, name, tmp_path, requests, **options) for target in targets)
    assert fused == plain


@MANY_PROGRAMS
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt-oss"])
def test_limited_models_have_the_same_tokens_and_steps_with_kernels(
    name: str, tmp_path: Path
) -> None:
    model = random_model(name).float().to(DEVICE)
    targets = Target(deepcopy(model)), Target(model, Execution(KERNELS))
    requests = [Request(prompts()[1], 3)]
    plain, fused = (decoded(target, "eagle2", tmp_path, requests, **SMALL) for target in targets)
    assert fused == plain


@pytest.mark.slow
def test_kernels_compile_for_gpus_and_keep_their_values_in_registers() -> None:
    env = {name: variable for name, variable in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels", "8.0", "8.6", "9.0"],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "attend_split" in done.stdout
