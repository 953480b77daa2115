"""Compile the suite's kernels in parallel into Triton's cache, so that no run waits for them.

    python -m benchmarks.gpu.kernels [--model M ...] [--dtype bfloat16] [--processes N]
                                     [--capability 90] [--most N]

To list the kernels that the suite needs, it runs the start-up check and the layers of each model on
tensors without memory, which launches nothing. Processes that use no GPU then compile the kernels.
With `--capability`, the machine needs no GPU at all. With `--most`, only the first kernels are
compiled.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from benchmarks.layer_time import _layers, _works
from specbench.engine.kernels.pick_ops import TRIED, Trial
from specbench.engine.kernels.triton_ops import TritonOps
from specbench.engine.read_kernel import block_sums
from specbench.errors import reason_of
from specbench.machine.bandwidth import GPU_BYTES
from specbench.models.cards import find_model
from specbench.types import Shape

ROWS = (1, 6, 10, 16, 26, 60, 64)
"""Numbers of rows in steps. A kernel may have variants for one row and for multiples of 16."""
CACHED, TOP = 500, 10
"""Rows in the cache, and tokens of a top-k."""
PROCESSORS = 132
"""The number of processors of an H100, which is assumed if there is no GPU."""
NOWHERE = torch.device("meta")
"""The device of the operations' tensors. They have no memory, because no kernel runs."""


class Kernel(NamedTuple):
    """A kernel of a module. `arguments` says what to compile it for, in Triton's own format."""

    module: str
    name: str
    arguments: str


class Offline:
    """A Triton driver that names the GPU to compile for, without using one."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """List the kernels and compile them. Returns 1 if a kernel does not compile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--capability", type=int, help="such as 90; needs no GPU")
    parser.add_argument("--most", type=int, help="largest number of kernels")
    given = parser.parse_args(argv)
    if given.capability:
        driver.set_active(Offline(GPUTarget("cuda", given.capability, 32)))
    dtype = getattr(torch, given.dtype)
    shapes = [find_model(name).shape for name in given.model]
    target = driver.active.get_current_target()
    num_processors = PROCESSORS
    if not given.capability:
        num_processors = torch.cuda.get_device_properties(0).multi_processor_count
    with listed() as kernels:
        block_sums(torch.empty(GPU_BYTES // 8, dtype=torch.int64, device=NOWHERE))
        for is_early in (True, False) if target.arch >= 90 else (False,):
            ops = TritonOps(num_processors, is_early=is_early)
            for checked_dtype in {dtype, torch.float32}:
                check(ops, checked_dtype)
            for shape in filter(None, shapes):
                layers(ops, shape, dtype)
    return 1 if compile_all([*kernels][: given.most], target, given.processes, print) else 0


@torch.inference_mode()
def check(ops: TritonOps, dtype: torch.dtype, device: torch.device = NOWHERE) -> None:
    """Call the operations in the same way as the start-up check."""
    for num_rows, heads in TRIED:
        Trial(num_rows, heads, device, dtype).run(ops)


@torch.inference_mode()
def layers(ops: TritonOps, shape: Shape, dtype: torch.dtype) -> None:
    """Call the operations of a layer, and the operations on logits."""
    first = _layers(shape, CACHED, NOWHERE, dtype)[:1]
    head = torch.empty(shape.vocab_size, shape.hidden_size, device=NOWHERE, dtype=dtype)
    for num_rows in ROWS:
        for work, _ in _works(shape, first, num_rows, CACHED).values():
            work(ops)
        x = head.new_ones(num_rows, shape.hidden_size)
        ops.topk_logprobs(ops.project(x, head), TOP)


@contextmanager
def listed() -> Iterator[dict[Kernel, None]]:
    """Collect the kernels that are called within the block, and neither compile nor launch them."""
    kernels: dict[Kernel, None] = {}

    def note(*, fn: Any, compile: Any, **rest: Any) -> bool:
        kernels[Kernel(fn.module, fn.name, compile["specialization_data"])] = None
        return True  # tells Triton to compile nothing

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = note
    try:
        yield kernels
    finally:
        knobs.runtime.jit_cache_hook = before


def compile_all(
    kernels: Sequence[Kernel], target: Any, num_processes: int, say: Callable[[str], object]
) -> list[str]:
    """Compile kernels for a GPU in several processes, and return the reasons of failures."""
    began, failures = time.monotonic(), []
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, spawning, use, (target,)) as pool:
        kernel_of = {pool.submit(compile_one, kernel): kernel for kernel in kernels}
        for number, done in enumerate(as_completed(kernel_of), 1):
            if error := done.exception():
                failures.append(f"{kernel_of[done].name}: {reason_of(error)}")
                say(failures[-1])
            say(f"{number} of {len(kernels)} kernels, {time.monotonic() - began:.0f} s")
    return failures


def use(target: Any) -> None:
    """Let this process compile for this GPU."""
    driver.set_active(Offline(target))


def compile_one(kernel: Kernel) -> None:
    """Compile a kernel into the cache."""
    getattr(import_module(kernel.module), kernel.name).preload(kernel.arguments)


if __name__ == "__main__":
    sys.exit(main())
