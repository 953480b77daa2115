"""The command of the suite. It names missing packages before it imports any."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = {
    name: name
    for name in (
        "torch", "transformers", "accelerate", "safetensors", "tokenizers", "sentencepiece",
        "huggingface_hub", "filelock", "msgspec", "numpy", "pandas", "scipy", "matplotlib",
        "jinja2", "typer", "rich", "psutil", "pytest", "hypothesis",
    )
} | {"pynvml": "nvidia-ml-py"}  # fmt: skip
"""Modules that the rows import, and their packages. The Hub's prompts and servers need more."""


def missing() -> list[str]:
    """The packages that are not installed."""
    return [package for module, package in NEEDED.items() if find_spec(module) is None]


def main() -> int:
    """Run the suite, or name the packages that are missing."""
    if names := missing():
        words = " ".join(names)
        print(f"Not installed: {words}. docs/gpu.md says how to install them.", file=sys.stderr)
        return 2
    from benchmarks.gpu.suite import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
