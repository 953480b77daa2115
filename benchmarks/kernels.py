"""What each kernel takes of a GPU, by the compiler's own account: no GPU is needed.

    python benchmarks/kernels.py [CAPABILITY ...]

Compiles every kernel as a decoding step of a 13B model in bfloat16 calls it, for compute capability
8.0 and 9.0 unless others are given. Prints registers a thread, bytes of stack (values that did not
fit the registers) and shared memory a program. Fails if a kernel does not compile, or spills.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specbench.engine import triton_kernels as kernels
from specbench.engine.triton_ops import CACHE_ROWS, PRODUCT, TILES

T, F, I = "*bf16", "*fp32", "i32"  # noqa: E741 - what Triton calls the types of arguments
ALIGNED = ("size", "stride", "num_out", "inner", "kv_width")
"""Whole numbers of 16, which the compiler is told as at every call."""

PROJECT = {
    **dict.fromkeys(("x", "weight", "bias", "norm", "residual", "out"), T),
    "num_out": I, "size": I, "eps": "fp32", "HAS_BIAS": False, **PRODUCT,
}  # fmt: skip
ATTEND = {
    **dict.fromkeys(("queries", "rows", "bias"), T),
    **dict.fromkeys(("parts", "tops", "totals"), F),
    **dict.fromkeys(("queries_stride", "rows_stride", "kv_width", "split_size"), I),
    "first": "*i64", "scale": "fp32", "DIM": 128, "BLOCK": CACHE_ROWS,
}  # fmt: skip
CASES: tuple[tuple[str, Any, Mapping[str, Any], Mapping[str, int]], ...] = (
    (
        "norm", kernels.norm_rows,
        {"x": T, "weight": T, "out": T, "size": I, "x_stride": I, "eps": "fp32", "BLOCK": 8192},
        {"num_warps": 16},
    ),
    (
        "normed product", kernels.project_row,
        {**PROJECT, "HAS_NORM": True, "HAS_RESIDUAL": False, "IS_GATED": False}, {},
    ),
    (
        "product and residual", kernels.project_row,
        {**PROJECT, "HAS_NORM": False, "HAS_RESIDUAL": True, "IS_GATED": False}, {},
    ),
    (
        "normed, gated product", kernels.project_row,
        {**PROJECT, "HAS_NORM": True, "HAS_RESIDUAL": False, "IS_GATED": True}, {},
    ),
    ("gate", kernels.gate_rows, {"both": T, "out": T, "inner": I, "BLOCK": 1024}, {}),
    (
        "rotary embedding", kernels.turn_and_keep,
        {
            **dict.fromkeys(("qkv", "rows", "turn"), T), "kept": "*i64",
            **dict.fromkeys(("qkv_stride", "rows_stride", "turn_stride"), I),
            "num_queries": I, "num_kv": I,
            "DIM": 128, "BLOCK": 128,
        },
        {"num_warps": 1},
    ),
    (
        "attention, a row", kernels.attend_split,
        {**ATTEND, "n": 1, "num_more": 1, "group": 1, "ROWS": 16}, TILES[16],
    ),
    (
        "attention, a level", kernels.attend_split,
        {**ATTEND, "n": I, "num_more": I, "group": 1, "ROWS": 16}, TILES[16],
    ),
    (
        "attention, a tree", kernels.attend_split,
        {**ATTEND, "n": I, "num_more": I, "group": 1, "ROWS": 64}, TILES[64],
    ),
    (
        "attention, a tree, grouped heads", kernels.attend_split,
        {**ATTEND, "n": I, "num_more": I, "group": I, "ROWS": 64}, TILES[64],
    ),
    (
        "attention's parts", kernels.join_splits,
        {
            **dict.fromkeys(("parts", "tops", "totals"), F), "out": T, "num_places": I,
            "num_splits": I, "DIM": 128, "SPLITS": 8,
        },
        {"num_warps": 1},
    ),
)  # fmt: skip
"""What is computed, by which kernel, the types or values of its arguments, and how."""


def main(capabilities: list[str]) -> int:
    """Print what every kernel takes; returns 1 if one spills."""
    spilling = 0
    print(f"triton {triton.__version__}")
    print(f"{'capability':<11}{'kernel':<15}{'for':<33}registers  stack  shared")
    for capability in capabilities or ["8.0", "9.0"]:
        for what, kernel, arguments, options in CASES:
            compiled = compile_for(kernel, arguments, int(capability.replace(".", "")), options)
            registers, stack = usage(compiled)
            spilling += stack > 0
            print(
                f"{capability:<11}{kernel.fn.__name__:<15}{what:<33}{registers:>9}{stack:>7}"
                f"{compiled.metadata.shared:>8}"
            )
    if spilling:
        print(f"{spilling} kernels do not fit the registers.", file=sys.stderr)
    return min(spilling, 1)


def compile_for(
    kernel: Any, arguments: Mapping[str, Any], capability: int, options: Mapping[str, int]
) -> Any:
    """A kernel compiled for arguments of these types; what is no type is a constant."""
    names = kernel.arg_names
    types = {
        name: arguments[name] if isinstance(arguments[name], str) else "constexpr" for name in names
    }
    constants = {
        (names.index(name),): value
        for name, value in arguments.items()
        if types[name] == "constexpr"
    }
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if types[name].startswith("*") or (types[name] == I and name.endswith(ALIGNED))
    }
    source = ASTSource(kernel, types, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))


def usage(compiled: Any) -> tuple[int, int]:
    """Registers a thread and bytes of stack of a compiled kernel."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    if found is None:
        raise SystemExit(f"{tool} does not tell what the kernel takes: {told.strip()[:200]}")
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
