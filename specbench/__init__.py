"""specbench: how much faster is each speculative-decoding method, on which task, and why."""

from typing import TYPE_CHECKING

from specbench.types import CHECKOUT
from specbench.types import VERSION as __version__

# `methods/` and `datasets/` stand beside the package in a checkout and are `specbench.methods` and
# `specbench.datasets` to Python. The wheel maps both folders into the package instead.
if (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "methods").is_dir():
    __path__.append(str(CHECKOUT))

__all__ = ["__version__", "load", "read_run", "run"]

if TYPE_CHECKING:
    from specbench.api import load, read_run, run
else:

    def __getattr__(name: str) -> object:
        """Import the API on first use, so that the command line starts quickly."""
        if name in __all__:
            from specbench import api

            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, including those that are imported on first use."""
    return sorted(__all__)
