"""The version of the package, and the folders that it reads and writes."""

from pathlib import Path

VERSION = "0.1.0"

_PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = _PACKAGE.parent
"""The folder that contains the package. In a checkout, this is the root of the checkout."""
ROOTS = (_PACKAGE, CHECKOUT) if (CHECKOUT / "pyproject.toml").is_file() else (_PACKAGE,)
"""Folders that contain `datasets/` and `results/`: first the installed package, then the checkout.
"""
RUNS = Path("results/runs")
"""Default folder of runs."""
