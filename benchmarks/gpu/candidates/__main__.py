"""The command that measures the candidate. Without a GPU, Triton's interpreter runs its kernel."""

from __future__ import annotations

import os
import sys

import torch


def main() -> int:
    """Choose the interpreter, if needed, before anything imports a kernel. Then measure."""
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from benchmarks.gpu.candidates.measure import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
