"""Kernels compiled in parallel for an absent GPU have the cache keys of a run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SOURCE = """
import sys, torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction
from benchmarks.gpu import kernels
from benchmarks.gpu.kernels import Offline, check, compile_all, layers, listed
from specbench.engine.kernels.triton_ops import TritonOps
from specbench.engine.read_kernel import block_sums
from specbench.engine.layers.operands import Norm
from specbench.models.cards import find_model
from torch.nn.functional import silu

TARGET = GPUTarget("cuda", 90, 32)

def work():
    ops = TritonOps(8, is_early=True)
    x, weight = torch.ones(16, 64, dtype=torch.bfloat16), torch.ones(96, 64, dtype=torch.bfloat16)
    norm = Norm(weight[0], 1e-5)
    for rows in (x, x[:1], x[:5]):
        ops.project(rows, weight, norm=norm)
        ops.gated(rows, weight, None, norm, silu)
        ops.topk_logprobs(rows, 10)
    block_sums(torch.ones(10_000, dtype=torch.int64))
    assert ops.fallbacks == {}, ops.fallbacks

def zeroed(make):
    return lambda *given, **named: make(*given, **named).zero_()

if __name__ == "__main__":
    driver.set_active(Offline(TARGET))
    if sys.argv[1] == "parallel":
        with listed() as found:
            work()
        assert compile_all([*found, *found], TARGET, 2, print) == []
    elif sys.argv[1] == "lists":
        kernels.TRIED = kernels.TRIED[:2]
        ops = TritonOps(8, is_early=True)
        with listed() as without_memory:
            check(ops, torch.bfloat16)
        # No kernel writes its result here: memory of zeros holds ids that can be looked up.
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
            setattr(owner, name, zeroed(getattr(owner, name)))
        with listed() as on_cpu:
            check(ops, torch.bfloat16, torch.device("cpu"))
        with listed() as of_model:
            layers(ops, find_model("vicuna-13b").shape, torch.bfloat16)
        assert without_memory == on_cpu and len(on_cpu) > 30, (len(without_memory), len(on_cpu))
        assert len(of_model) > 12 and ops.fallbacks == {}, len(of_model)
    else:  # as a run compiles them: at their first launch
        run = JITFunction.run
        JITFunction.run = lambda *given, **named: run(*given, **{**named, "warmup": True})
        work()
"""


def test_parallel_processes_fill_the_cache_with_the_keys_of_launches(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    script = tmp_path / "compiling.py"
    script.write_text(SOURCE)
    keys = {}
    for way in ("launches", "parallel", "lists"):
        cache = tmp_path / way
        env = {**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
        env.pop("TRITON_INTERPRET", None)
        done = subprocess.run(
            [sys.executable, str(script), way], env=env, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        keys[way] = {path.parent.name for path in cache.glob("*/*.cubin")}
        if way == "parallel":
            lines = [line.split(" kernels,")[0] for line in done.stdout.splitlines()]
            assert lines[-1] == f"{len(lines)} of {len(lines)}"
    assert keys["lists"] == set()
    assert keys["parallel"] == keys["launches"] and len(keys["launches"]) >= 6
