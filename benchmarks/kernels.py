"""What each kernel takes of a GPU, by the compiler's own account: no GPU is needed.

    python benchmarks/kernels.py [CAPABILITY ...]

Compiles every kernel as a decoding step of a 13B model in bfloat16 calls it, for compute capability
8.0 and 9.0 unless others are given, from 9.0 on to begin early. Prints registers a thread, bytes of
stack (values that did not fit the registers) and shared memory a program. Fails if a kernel does
not compile, or spills.
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

from specbench.engine import triton_best
from specbench.engine import triton_kernels as kernels
from specbench.engine.triton_ops import CACHE_ROWS, CHUNK, PRODUCT_BLOCK, PRODUCTS, TILES

T, F, I = "*bf16", "*fp32", "i32"  # noqa: E741 - what Triton calls the types of arguments
ALIGNED = ("size", "stride", "num_out", "inner", "kv_width")
"""Whole numbers of 16, which the compiler is told as at every call."""

PROJECT = {
    **dict.fromkeys(("x", "weight", "bias", "norm", "out"), T),
    "num_out": I, "size": I, "eps": "fp32", "HAS_BIAS": False, "BLOCK": PRODUCT_BLOCK,
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
    *(
        (
            f"{what}, {how['ROWS']} rows, {how['STAGES']} stages", kernels.project_row,
            {**PROJECT, **flags, **how}, {},
        )
        for what, flags in (
            ("normed product", {"HAS_NORM": True, "IS_ADDED": False, "IS_GATED": False}),
            ("product and sum", {"HAS_NORM": False, "IS_ADDED": True, "IS_GATED": False}),
            ("gated product", {"HAS_NORM": True, "IS_ADDED": False, "IS_GATED": True}),
        )
        for how in PRODUCTS
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
    (
        "candidates of a draft", triton_best.greatest_of_few,
        {"values": "*fp64", "best": "*fp64", "places": "*i64", "size": I, "K": 60, "BLOCK": 1024},
        {},
    ),
    (
        "a chunk of logits", triton_best.best_of_chunk,
        {
            "logits": T, **dict.fromkeys(("best", "tops", "totals"), F), "ids": "*i32",
            "vocab_size": I, "stride": I, "K": 10, "BLOCK": CHUNK,
        },
        {},
    ),
    (
        "a row of logits", triton_best.best_of_row,
        {
            **dict.fromkeys(("best", "tops", "totals", "log_probs"), F), "ids": "*i32",
            "chosen": "*i64", "num_chunks": I, "K": 10, "CHUNKS": 32, "BLOCK": 512,
        },
        {},
    ),
)  # fmt: skip
"""What is computed, by which kernel, the types or values of its arguments, and how."""


def main(capabilities: list[str]) -> int:
    """Print what every kernel takes; returns 1 if one spills."""
    spilling = 0
    print(f"triton {triton.__version__}")
    print(f"{'capability':<11}{'kernel':<17}{'for':<35}registers  stack  shared")
    for capability in capabilities or ["8.0", "9.0"]:
        for what, kernel, arguments, options in CASES:
            number = int(capability.replace(".", ""))
            compiled = compile_for(kernel, {**arguments, "EARLY": number >= 90}, number, options)
            registers, stack = usage(compiled)
            spilling += stack > 0
            print(
                f"{capability:<11}{kernel.fn.__name__:<17}{what:<35}{registers:>9}{stack:>7}"
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
