"""The version of the package, and the folders that it reads and writes."""

from pathlib import Path

VERSION = "0.1.0"

_PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = _PACKAGE.parent
"""The folder around the package: the checkout's root, if it is one."""
ROOTS = (_PACKAGE, CHECKOUT) if (CHECKOUT / "pyproject.toml").is_file() else (_PACKAGE,)
"""Folders that hold `datasets/` and `results/`: the wheel's, then a checkout's."""
RUNS = Path("results/runs")
"""Default folder of runs."""
