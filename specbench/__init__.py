"""specbench: how much faster is each speculative-decoding method, on which task, and why."""

from pathlib import Path

__version__ = "0.1.0"

# `methods/` and `datasets/` stand beside the package in a checkout and are `specbench.methods` and
# `specbench.datasets` to Python. The wheel maps both folders into the package instead.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "methods").is_dir():
    __path__.append(str(_checkout))
