"""The command of the candidate. Without a GPU, Triton's interpreter runs it."""

from __future__ import annotations

import os
import sys

import torch


def main() -> int:
    """Choose the interpreter before anything imports a kernel."""
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from benchmarks.gpu.candidates.measure import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
