"""The GPU checks on a CPU, with fake captures and torch in place of kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.gpu import checks, operations
from benchmarks.gpu.captures import capture_every_method, capture_statements
from benchmarks.gpu.check import Check, CheckSettings
from benchmarks.gpu.fake_capture import FakeRecorder
from benchmarks.layer_time import _layers
from specbench.engine.decode import decode
from specbench.engine.graphs.cuda import Graphs
from specbench.engine.kernels.pick_ops import TRIED
from specbench.engine.kernels.products import FEW, ROW, Launch, LinearCall, Product
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import Ops
from specbench.engine.target import Target
from specbench.registry import names
from specbench.types import Request, Sampling, Shape
from tests.support.models import prompts, random_llama
from tests.support.weights import build

SHAPE = Shape(3, 256, 640, 4, 4, 2304, 2048)
CPU = torch.device("cpu")
SETTINGS = CheckSettings(CPU, torch.float32, SHAPE, 1, 3, 5)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.8, top_p=0.9)], ids=["greedy", "drawn"]
)
@pytest.mark.parametrize("name", names())
def test_the_steps_of_every_method_can_be_captured(
    name: str, sampling: Sampling, tmp_path: Path
) -> None:
    target = Target(random_llama(layers=8), Graphs(FakeRecorder()))
    drafter = build(name, target, tmp_path)
    for prompt in prompts()[1:3]:
        decode(target, drafter, Request(prompt, 8, sampling))
    assert target.execution.failures == set()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + x.max().item(), "_local_scalar_dense.default waits"),
        (lambda x: x[x > 0], "waits"),
        (lambda x: x.nonzero(), "nonzero.default waits"),
        (lambda x: x + torch.tensor([1.0, 2.0]), "a tensor [2] is made of numbers on the host"),
    ],
)
def test_operations_that_a_capture_forbids_are_found(
    function: Callable[[Tensor], Tensor], reason: str
) -> None:
    graphs = Graphs(FakeRecorder())
    given = torch.tensor([1.0, 2.0])
    (found,) = graphs.wrap(lambda x: (function(x),))(given)
    assert torch.equal(found, function(given))  # it runs all the same
    (failure,) = graphs.failures
    assert reason in failure


def test_a_fake_recording_computes_from_its_current_inputs() -> None:
    x = torch.tensor([1.0, 2.0])
    recording = FakeRecorder()(lambda: (2 * x,), ())
    x += 1
    recording.replay()
    assert recording.outputs[0].tolist() == [4.0, 6.0]


@pytest.mark.slow
def test_recorded_methods_are_compared_with_eager_steps() -> None:
    found = {check.name: check for check in capture_every_method(SETTINGS)}
    assert set(found) == {
        f"{what} at T={t}" for what in ("captured steps", "graphs against eager") for t in (0, 1)
    }
    assert found["captured steps at T=0"].is_ok and found["graphs against eager at T=0"].is_ok
    assert found["graphs against eager at T=0"].value["num_differing"] == 0
    assert found["graphs against eager at T=0"].value["same"]["eagle2"] == 1


class Wrong(Ops):
    """Right in the first call, then slightly wrong in every other call."""

    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0

    def norm(self, x: Tensor, norm: Norm, residual: Tensor | None = None) -> Tensor:
        out = super().norm(x, norm, residual)
        self._num_calls += 1
        if self._num_calls % 2:
            out[-1, -1] += 1e-3
        return out


class Unnormed(Wrong):
    """Counts only the last norm of a step: the norms of products are computed by torch."""

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, **more: object
    ) -> Tensor:
        return Ops().project(x, weight, bias, **more)  # type: ignore[arg-type]


@torch.inference_mode()
def test_replays_that_differ_by_a_bit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import layer_time

    monkeypatch.setattr(layer_time, "LEAST_BYTES", 2**20)
    monkeypatch.setattr(layer_time, "cache_bytes", lambda device: 0)
    layers = _layers(SHAPE, operations.CACHED, CPU, torch.float32)
    for num_rows in (1, 10):
        work = operations.layer_work(SHAPE, layers, num_rows)
        count = partial(operations.num_differing, work, Ops(), recorder=FakeRecorder())
        assert count(early=Ops(), num_replays=4) == 0
        assert count(early=Unnormed(), num_replays=4) == 2


@torch.inference_mode()
@pytest.mark.parametrize(("num_rows", "launch"), operations.RACES, ids=str)
def test_every_launch_of_a_race_runs_the_products_it_is_for(num_rows: int, launch: Launch) -> None:
    """In Triton's interpreter: products of other kinds keep their own launch."""
    pytest.importorskip("triton", reason="triton is not installed")
    ops, used = operations.with_launch(launch, 2, is_early=False), []
    x, weight = torch.randn(num_rows, 64), torch.randn(32, 64) / 8
    for kernel in ("row", "few"):
        of_kind = getattr(ops._products, kernel)

        def noted(call: LinearCall, kind: Launch, run: Callable[..., Tensor] = of_kind) -> Tensor:
            used.append(kind)
            return run(call, kind)

        setattr(ops._products, kernel, noted)
    found = ops.project(x, weight)
    torch.testing.assert_close(found, x @ weight.T, rtol=1e-4, atol=1e-4)
    assert used == ([] if launch is None else [launch]) and ops.fallbacks == {}
    assert ops.launch_of(Product(1, 32, 64)) == (launch if launch in ROW else ROW[0])


def test_the_few_row_kernel_races_at_every_size_of_its_blocks_and_at_eagles_tree() -> None:
    rows = {num_rows for num_rows, launch in operations.RACES if launch == FEW}
    assert rows >= {2, 16, 17, 26, 33, 64}
    assert {launch for num_rows, launch in operations.RACES if num_rows == 1} == set(ROW)
    assert any(num_rows == 26 for num_rows, _ in TRIED)  # the start-up check


def test_attention_is_timed_at_lengths_that_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def attend(settings: CheckSettings, length: int) -> float:
        lengths.append(length)
        return 1.0

    monkeypatch.setattr(operations, "_attend", attend)
    (check,) = operations.attention_at_new_lengths(SETTINGS)
    assert check.is_ok is None  # a fact without a GPU
    new = set(lengths) - {64}  # which is what loads the kernels
    assert len(new) == 6 and all(lengths.count(length) == 2 for length in new)


def test_without_a_gpu_checks_that_need_one_say_so() -> None:
    for checker in (capture_statements, operations.products, operations.overlapping_layers):
        (check,) = checker(SETTINGS)
        assert (check.is_ok, check.text) == (None, "needs a CUDA device")


def test_a_failed_check_is_a_problem_and_the_next_one_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(settings: CheckSettings) -> Iterator[Check]:
        yield Check("before", True, "fine", 1)
        raise RuntimeError("no such driver\nat all")

    def after(settings: CheckSettings) -> Iterator[Check]:
        yield Check("after", None, "a fact")

    monkeypatch.setattr(checks, "CHECKERS", (broken, after))
    out = tmp_path / "checks.jsonl"
    assert checks.main(["--device", "cpu", "--model", "tiny", "--out", str(out)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "ok      before: fine", "PROBLEM broken: fails: no such driver", "note    after: a fact",
        "PROBLEM in broken",
    ]  # fmt: skip
    before, broken_one, _ = map(json.loads, out.read_text().splitlines())
    assert broken_one["verdict"] == "PROBLEM" and before["value"] == 1
