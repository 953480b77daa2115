"""Kernels that Triton cannot compile or launch are replaced by torch, and the reason is kept."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.graphs import recorder as recorders
from specbench.engine.kernels import pick_ops as picking
from specbench.engine.kernels.pick_ops import pick_ops
from specbench.engine.layers.operands import CacheRows, CacheSpan, Heads, TreeMask
from specbench.engine.layers.ops import TORCH
from tests.support.devices import DEVICE

pytest.importorskip("triton", reason="triton is not installed")

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from specbench.engine.kernels import triton_ops
from specbench.engine.kernels.triton_ops import TritonOps

HEADS = Heads(2, 1, 16)


class Failing:
    """A kernel that cannot be launched. It counts the attempts."""

    def __init__(self, error: Exception) -> None:
        self.num_calls = 0
        self._error = error

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*args: object, **options: object) -> None:
            self.num_calls += 1
            raise self._error

        return launch


def attention(ops: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 2 * HEADS.kv_width, generator=generator).to(DEVICE)
    queries = torch.randn(3, HEADS.query_width, generator=generator).to(DEVICE)
    bias = torch.zeros(3, 3, device=DEVICE)
    tree_mask = TreeMask(torch.tensor(20, device=DEVICE), bias, CacheSpan(64, is_exact=False))
    return ops.attend(queries, CacheRows.of(rows, (2, 16), (2, 16)), tree_mask, HEADS)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OutOfResources(131072, 101376, "shared memory"), "out of resource: shared memory"),
        (CompilationError("x = 1", ast.parse("x = 1").body[0], "no such type"), "no such type"),
        (PTXASError("unknown opcode\nat line 7"), "unknown opcode"),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), "Triton Error [CUDA]: invalid"),
        (RuntimeError("PassManager::run failed"), "PassManager::run failed"),
    ],
)
def test_an_operation_that_triton_cannot_launch_is_replaced_by_torch(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Failing(error)
    monkeypatch.setattr(triton_ops, "attend_split", kernel)
    ops = TritonOps(8)
    for _ in range(2):
        torch.testing.assert_close(attention(ops), attention(TORCH))
    assert kernel.num_calls == 1
    assert ops.fallbacks["attention"].startswith(f"run by torch, since {reason}")
    assert ops.reason is not None and "attention: run by torch, since" in ops.reason
    assert ops.kernels_unsupported_reason is None  # the others are kernels


def test_errors_of_torch_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("operation not permitted when stream is capturing")
    monkeypatch.setattr(triton_ops, "attend_split", Failing(error))
    ops = TritonOps(8)
    with pytest.raises(RuntimeError, match="not permitted"):
        attention(ops)
    assert ops.fallbacks == {}


def test_a_product_that_triton_cannot_launch_leaves_others_to_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ops, failed = TritonOps(8), []

    def launch(x: Tensor, *more: Any) -> Tensor:
        if x.shape[1] > 64:
            failed.append(x)
            raise OutOfResources(2, 1, "shared memory")
        return TritonOps._row(ops, x, *more)

    monkeypatch.setattr(ops, "_row", launch)
    for size in (128, 64, 128):
        x, weight = torch.ones(1, size, device=DEVICE), torch.randn(32, size, device=DEVICE)
        residual = torch.ones(1, 32, device=DEVICE)
        product = ops.project(x, weight, residual=residual.clone())
        torch.testing.assert_close(product, TORCH.project(x, weight, residual=residual.clone()))
    assert list(ops.fallbacks) == ["products of a row, 32 x 128"] and len(failed) == 1


class Refusing:
    """A fake start-up check, with the reasons and fallbacks of plain and of overlapped kernels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
        self.wrong: dict[str, str] = {}
        self.fallbacks: dict[str, dict[str, str]] = {}
        properties = SimpleNamespace(
            major=capability[0], minor=capability[1], multi_processor_count=132
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(recorders, "CudaRecorder", lambda device: None)
        monkeypatch.setattr(picking, "unsupported_reason", self)

    def __call__(self, ops: TritonOps, *args: object) -> str | None:
        how = "overlapped" if "overlapped" in ops.name else "plain"
        ops.fallbacks.update(self.fallbacks.get(how, {}))
        return self.wrong.get(how)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusing]:
    yield Refusing(monkeypatch, (9, 0))


def picked(kind: str = "auto") -> Any:
    return pick_ops(torch.device("cuda"), torch.bfloat16, kind)


@pytest.mark.parametrize(("major", "minor"), [(7, 5), (7, 0)])
def test_a_gpu_below_capability_8_has_torchs_operations(
    major: int, minor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Refusing(monkeypatch, (major, minor))
    ops = picked()
    assert ops.name == "torch"
    assert ops.reason == f"the GPU has compute capability {major}.{minor}, kernels need 8.0"


def test_one_recorder_serves_the_start_up_checks(
    hopper: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch keeps a workspace of 32 MiB for each stream that multiplies, and never frees it."""
    devices: list[torch.device] = []

    def recorder(device: torch.device) -> torch.device:
        devices.append(device)
        return device

    monkeypatch.setattr(recorders, "CudaRecorder", recorder)
    hopper.wrong["overlapped"] = "the sums are off"
    picked()
    assert len(devices) == 1


OFF, MORE = "the norm is off", "the norm is off too"
FAILED = {"attention": "run by torch, since Triton Error [CUDA]: invalid"}
REASON = "attention: run by torch, since Triton Error [CUDA]: invalid"


@pytest.mark.parametrize(
    ("kind", "wrong", "failed", "used", "reason"),
    [
        ("auto", {}, {}, "overlapped", None),
        ("auto", {"overlapped": OFF}, {}, "plain", f"launches do not overlap: {OFF}"),
        ("auto", {}, {"overlapped": FAILED, "plain": FAILED}, "overlapped", REASON),
        ("auto", {}, {"overlapped": FAILED}, "plain", f"launches do not overlap: {REASON}"),
        ("auto", {"overlapped": OFF, "plain": MORE}, {}, "torch", f"{OFF}; {MORE}"),
        ("plain", {"overlapped": OFF}, {}, "plain", None),
        ("overlapped", {"plain": OFF}, {}, "overlapped", None),
        ("plain", {"plain": OFF}, {}, "torch", OFF),
        ("overlapped", {"overlapped": OFF}, {}, "torch", OFF),
    ],
)
def test_launches_overlap_unless_a_kernel_would_fail(
    kind: str, wrong: Any, failed: Any, used: str, reason: str | None, hopper: Refusing
) -> None:
    hopper.wrong, hopper.fallbacks = wrong, failed
    ops, plain = picked(kind), TritonOps(8).name
    names = {"torch": "torch", "plain": plain, "overlapped": f"{plain}, overlapped"}
    assert ops.name == names[used]
    assert ops.describe()["reason"] == ops.reason == reason
