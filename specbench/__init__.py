"""specbench: how much faster is each speculative-decoding method, on which task, and why."""

from pathlib import Path
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# `methods/` and `datasets/` stand beside the package in a checkout and are `specbench.methods` and
# `specbench.datasets` to Python. The wheel maps both folders into the package instead.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "methods").is_dir():
    __path__.append(str(_checkout))

if TYPE_CHECKING:
    from specbench.api import load as load
else:

    def __getattr__(name: str) -> object:
        """`specbench.load`, imported when asked for: the command line starts without torch."""
        if name == "load":
            from specbench.api import load

            return load
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
