"""The candidate for products of 16 to 64 rows: its results, and its compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from specbench.engine.kernels.pick_ops import relative_error
from tests.support.devices import CPU
from tests.support.paths import ROOT

pytest.importorskip("triton", reason="triton is not installed")
if torch.cuda.is_available():
    pytest.skip("on a GPU, the candidate's row checks it", allow_module_level=True)

from triton.runtime.interpreter import interpreter_builder

from benchmarks.gpu.candidates.products import Launch, StreamOps

SMALL = Launch(64, 64, 4, 4)
SIZES = [(384, 128), (128, 128), (688, 128), (128, 344), (100, 136), (33, 8)]
"""Rows and columns of weights: about a fortieth of Vicuna-13B's, and others."""
ERRORS = {torch.float32: 1e-6, torch.float16: 1e-3}
COMPILING = """
from benchmarks.gpu.candidates.products import LAUNCHES, Launch
from benchmarks.gpu.candidates.stream_kernel import stream_product
from benchmarks.kernel_cases import Case, F, I, T
from benchmarks.kernels import PROCESSORS, REGISTERS, _compiled, usage

def case(rows, launch):
    tiles = f"tensordesc<bf16[{{}}, {launch.block_in}]>"
    return Case("products", stream_product, {
        "weight_tiles": tiles.format(launch.block_out), "x_tiles": tiles.format(rows),
        "weight": T, "out": T, "parts": F, "arrived": "*i32", "num_rows": I, "num_out": I,
        "size": I, "IS_ADDED": True, "BLOCK_OUT": launch.block_out, "BLOCK_ROWS": rows,
        "BLOCK_IN": launch.block_in, "STAGES": launch.num_stages,
    }, {"num_warps": launch.num_warps, "launch_pdl": True})

for rows, launches in LAUNCHES.items():
    for launch in launches:
        compiled = _compiled(case(rows, launch), "9.0")
        registers, stack = usage(compiled)
        shared, code = compiled.metadata.shared, compiled.asm["ptx"]
        print(rows, launch.name, registers, "registers", stack, "spilled", shared, "shared")
        assert stack == 0 and 32 * launch.num_warps * launch.per_processor * registers <= REGISTERS
        assert launch.per_processor * (shared + 1024) <= PROCESSORS["9.0"][0] * 1024
        assert code.count(f"wgmma.mma_async.sync.aligned.m64n{rows}k16") >= launch.block_in // 16
        assert code.count("cp.async.bulk.tensor") == 2 * launch.num_stages  # weights and x
        fetch = code.index("cp.async.bulk.prefetch.L2.global")
        assert fetch < code.index("griddepcontrol.wait") < code.index("cp.async.bulk.tensor")
"""


def drawn(num_rows: int, num_out: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    """x, weight and residual."""
    generator = torch.Generator().manual_seed(num_rows)
    shapes = ((num_rows, size), (num_out, size), (num_rows, num_out))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("num_rows", [1, 16, 17, 33, 60, 64])
def test_products_equal_torchs(num_rows: int, dtype: torch.dtype) -> None:
    """A tile belongs to one program, to two or to many. Several products run in a row."""
    for num_processors in (3, 40):
        ops = StreamOps(num_processors, SMALL, CPU)
        for num_out, size in SIZES:
            x, weight, residual = drawn(num_rows, num_out, size, dtype)
            expected = linear(x.double(), weight.double()).float()
            assert relative_error(ops.stream(x, weight), expected) < ERRORS[dtype]
            summed = ops.stream(x, weight, residual.clone())
            assert relative_error(summed, expected + residual) < ERRORS[dtype]


def test_bits_do_not_depend_on_which_program_ends_last(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, residual = drawn(17, 100, 344, torch.float32)
    set_index = interpreter_builder.set_grid_idx

    def set_last_first(index: int, *others: int) -> None:
        set_index(interpreter_builder.grid_dim[0] - 1 - index, *others)

    for num_processors in (3, 40):
        ops = StreamOps(num_processors, SMALL, CPU)
        expected = ops.stream(x, weight, residual.clone())
        with monkeypatch.context() as backwards:
            backwards.setattr(interpreter_builder, "set_grid_idx", set_last_first)
            assert torch.equal(ops.stream(x, weight, residual.clone()), expected)


def test_every_launch_compiles_for_hopper_without_spills(tmp_path: Path) -> None:
    script = tmp_path / "compiling.py"
    script.write_text(COMPILING)
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 12
