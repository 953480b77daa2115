"""The kernels compute the same as torch. Without a GPU, Triton's interpreter runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, silu

from specbench.engine.execution import Execution
from specbench.engine.kernels import pick_ops
from specbench.engine.kernels.pick_ops import relative_error, unsupported_reason
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import TORCH, gelu_tanh
from specbench.engine.target import Target
from specbench.types import Request
from tests.engine.test_target import random_model
from tests.support.devices import DEVICE
from tests.support.models import prompts, random_llama
from tests.support.paths import ROOT
from tests.support.weights import decoded

pytest.importorskip("triton", reason="triton is not installed")

from specbench.engine.kernels import triton_ops
from specbench.engine.kernels.triton_ops import CHUNK, MAX_TOPK, MOST_FEW, TritonOps, is_row

KERNELS = TritonOps(num_processors=8)


IS_INTERPRETED = not torch.cuda.is_available()
MANY_PROGRAMS = pytest.mark.slow  # tracing would slow the interpreter down
NO_BFLOAT16 = pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter multiplies no bfloat16")


@pytest.fixture(autouse=True)
def _no_kernel_has_failed() -> Iterator[None]:
    """Fail if an operation fell back to torch, since it was then compared with itself."""
    yield
    assert KERNELS.fallbacks == {}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loops over smaller blocks, in fewer programs, which the interpreter runs in turn."""
    if IS_INTERPRETED:
        monkeypatch.setattr(triton_ops, "ROW_BLOCK", 128)
        monkeypatch.setattr(triton_ops, "EXPERT_BLOCK", 64)
        monkeypatch.setattr(triton_ops, "EXPERT_ROWS", 32)
        sizes = {"HIDDEN": 144, "EXPERT_HIDDEN": 80, "VOCAB": 3000}
        for name, size in sizes.items():
            monkeypatch.setattr(pick_ops, name, size)


@MANY_PROGRAMS
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=NO_BFLOAT16)]
)
@pytest.mark.usefixtures("small_blocks")
def test_kernels_compute_the_same_as_torch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if IS_INTERPRETED and dtype.itemsize == 2:
        # In half precision, attention uses other blocks only for many rows.
        monkeypatch.setattr(pick_ops, "TRIED", pick_ops.TRIED[::3])
    assert unsupported_reason(KERNELS, DEVICE, dtype) is None


def test_norms_with_wide_weights_are_added_to_a_residual() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 300, device=DEVICE).half()
    residual = torch.randn(3, 300, device=DEVICE).half()
    norm = Norm(torch.rand(300, device=DEVICE) + 0.5, 1e-5)
    changed = residual.clone()
    normed = KERNELS.norm(x, norm, changed)
    assert normed is changed
    expected = TORCH.norm(x, norm, residual)
    torch.testing.assert_close(normed, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(KERNELS.norm(x, norm), norm(x))


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_include_norm_bias_residual_and_gate(num_rows: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(num_rows, 1100, device=DEVICE)
    before = torch.randn(num_rows, 37, device=DEVICE)
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


def test_the_launch_of_a_row_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1300, device=DEVICE)
    weight = torch.randn(74, 1300, device=DEVICE)
    norm = Norm(torch.randn(1300, device=DEVICE), 1e-5)
    results = []
    for rows in (1, 2, 4):
        monkeypatch.setitem(triton_ops.ROWS, True, rows)
        results.append(KERNELS.gated(x, weight, None, norm, silu))
    for result in results:
        assert torch.equal(result, results[0])
    assert results[0].abs().max() > 0


def test_only_a_dense_row_has_a_kernel() -> None:
    weight = torch.zeros(32, 64).bfloat16()
    row = torch.zeros(1, 64).bfloat16()
    two_rows = torch.zeros(2, 64).bfloat16()
    assert is_row(row, weight)
    assert is_row(row, weight, row)
    assert not is_row(two_rows, weight)
    numbers = torch.zeros(32 * 64 + 1).bfloat16()
    shifted = numbers[1:].view(32, 64)
    assert not is_row(row, shifted)
    wider = torch.zeros(32, 128).bfloat16()
    assert not is_row(row, wider[:, :64])
    assert not is_row(wider[:1, ::2], weight)
    transposed = torch.zeros(64, 2).t()
    assert not is_row(row, weight, transposed[1:, ::2])


def test_numbers_that_overflow_in_both_results_count_as_equal() -> None:
    right = torch.tensor([3.0, 4.0, -torch.inf, torch.inf]).half()
    assert relative_error(right.clone(), right) == 0
    difference = torch.tensor([0.5, 0, 0, 0]).half()
    assert relative_error(right + difference, right) == pytest.approx(0.1)
    for wrong in (torch.inf, 4.0, torch.nan):
        actual = right.clone()
        actual[2] = wrong
        assert not relative_error(actual, right) <= 1e-2


@pytest.mark.parametrize("vocab_size", [7, CHUNK, 2 * CHUNK + 100])
def test_topk_log_probabilities_equal_a_sort(vocab_size: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, vocab_size, device=DEVICE)
    logits[1] = -torch.inf
    logits[1, 2] = 1.0
    logits[1, 5] = 2.0
    logits[2, 1::2] = 9.0  # the first of equal logits is chosen
    k = min(vocab_size, 12)
    log_probs, ids = KERNELS.topk_logprobs(logits, k)
    expected = logits.log_softmax(-1).sort(descending=True, stable=True)
    assert ids.dtype == torch.long
    assert torch.equal(ids[0], expected.indices[0, :k])
    assert ids[1].tolist()[:2] == [5, 2]
    assert torch.equal(ids[2], expected.indices[2, :k])
    for ids_of_row in ids.tolist():
        assert len(set(ids_of_row)) == k
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
    assert torch.equal(values[places], highest)
    assert len(set(places.tolist())) == k
    if size <= MOST_FEW:
        assert torch.equal(places, expected.indices[:k])


def test_a_k_too_large_for_the_kernel_is_computed_by_torch() -> None:
    logits = torch.randn(2, 300, device=DEVICE)
    k = MAX_TOPK + 1
    log_probs, _ = KERNELS.topk_logprobs(logits, k)
    expected, _ = TORCH.topk_logprobs(logits, k)
    assert torch.equal(log_probs, expected)


SMALL = {"total_tokens": "8", "depth": "2", "top_k": "3"}


def assert_equal_steps(
    model: Any, name: str, folder: Path, request: Request, **options: str
) -> None:
    """Decode a request with torch's operations and with kernels, and compare tokens and steps."""
    by_torch = Target(deepcopy(model))
    by_kernels = Target(model, Execution(KERNELS))
    expected = decoded(by_torch, name, folder, [request], **options)
    assert decoded(by_kernels, name, folder, [request], **options) == expected


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
    assert_equal_steps(model, name, tmp_path, Request(prompts()[0], 3), **options)


@MANY_PROGRAMS
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt-oss"])
def test_limited_models_have_the_same_tokens_and_steps_with_kernels(
    name: str, tmp_path: Path
) -> None:
    model = random_model(name).float().to(DEVICE)
    assert_equal_steps(model, "eagle2", tmp_path, Request(prompts()[1], 3), **SMALL)


@pytest.mark.slow
def test_kernels_compile_for_gpus_and_keep_their_values_in_registers() -> None:
    env = {name: variable for name, variable in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels", "8.0", "8.6", "9.0"],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "attend_split" in done.stdout
