"""The resources of each kernel, as the compiler reports them. No GPU is needed.

    python -m benchmarks.kernels [CAPABILITY ...]

It compiles every kernel with the arguments of a decoding step of a 13B model in bfloat16. By
default it compiles for compute capability 8.0, 8.6, 8.9, 9.0 and 10.0. From 9.0 on, kernels are
compiled for early launches. It prints registers per thread, bytes of stack (spilled registers),
shared memory per program, and the number of programs that a processor holds at once. It fails if a
kernel does not compile, needs too much shared memory or spills more than allowed, or if a processor
holds fewer programs than planned.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.kernel_cases import CASES, Case, I
from specbench.errors import reason_of

ALIGNED = ("size", "stride", "num_out", "inner", "kv_width")
"""Endings of the names of arguments that the compiler may take as multiples of 16."""

REGISTERS = 65536
PROCESSORS = {
    "8.0": (164, 163, 64), "8.6": (100, 99, 48), "8.9": (100, 99, 48), "9.0": (228, 227, 64),
    "10.0": (228, 227, 64), "12.0": (100, 99, 48),
}  # fmt: skip
"""Limits by capability: KiB of shared memory per processor and per program, warps per processor."""


def main(capabilities: list[str]) -> int:
    """Print the resources of every kernel. Returns 1 if a kernel needs too much."""
    failing = 0
    print(f"triton {triton.__version__}")
    print(f"{'for':<5}{'kernel':<17}{'what':<50}registers  stack  shared  programs")
    for capability in capabilities or ["8.0", "8.6", "8.9", "9.0", "10.0"]:
        if reason := _unsupported_reason(capability):
            print(f"{capability:<5}skipped: {reason}")
            continue
        for case in CASES:
            failing += _print_resources(case, capability)
    if failing:
        print(
            f"{failing} kernels need more than a processor has, or do not compile.",
            file=sys.stderr,
        )
    return min(failing, 1)


def _unsupported_reason(capability: str) -> str | None:
    """The reason that a capability cannot be checked, or None if it can."""
    if capability not in PROCESSORS:
        return f"its shared memory is unknown (known: {', '.join(PROCESSORS)})"
    case = next(case for case in CASES if case.what == "norm")
    try:
        _compiled(case, capability)
    except Exception as error:  # compilers raise anything for an unknown target
        return f"triton {triton.__version__} does not compile for it ({reason_of(error)})"
    return None


def _print_resources(case: Case, capability: str) -> bool:
    """Print a kernel's resources. Returns True if they are too much, or if it does not compile."""
    row = f"{capability:<5}{case.kernel.fn.__name__:<17}{case.what:<50}"
    try:
        compiled = _compiled(case, capability)
    except Exception as error:  # compilers have bugs
        print(f"{row} does not compile: {reason_of(error)}")
        return True
    registers, stack = usage(compiled)
    shared = compiled.metadata.shared
    memory, most, most_warps = PROCESSORS[capability]
    warps = compiled.metadata.num_warps
    # Registers are allocated in eights; each program uses an extra KiB of shared memory.
    programs = min(
        REGISTERS // (-(-registers // 8) * 8 * 32 * warps), most_warps // warps,
        memory * 1024 // (shared + 1024),
    )  # fmt: skip
    fits = shared <= most * 1024
    held = programs if fits else "too much"
    print(f"{row}{registers:>9}{stack:>7}{shared:>8}{held:>10}", flush=True)
    return stack > case.spilled or not fits or programs < case.resident


def _compiled(case: Case, capability: str) -> Any:
    """Compile a kernel. Arguments whose value is a text are types, all others are constants."""
    number = int(capability.replace(".", ""))
    arguments, names = {**case.arguments, "EARLY": number >= 90}, case.kernel.arg_names
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
    source = ASTSource(case.kernel, types, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", number, 32)
    return triton.compile(source, target=target, options=dict(case.options))


def usage(compiled: Any) -> tuple[int, int]:
    """Registers per thread and bytes of stack of a compiled kernel."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        report = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", report)
    if match is None:
        raise SystemExit(f"{tool} does not report the kernel's registers: {report.strip()[:200]}")
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
