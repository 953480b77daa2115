"""Serving engines that specbench can start: one file each, with an `ENGINE`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.measure.server.engine import Engine

NAMES = tuple(sorted(one.name for one in pkgutil.iter_modules(__path__)))
"""Engines by their name on the command line, which is that of their file."""


@cache
def load_engine(name: str) -> Engine:
    """The engine of a file in this folder."""
    engine: Engine = import_module(f"{__name__}.{name}").ENGINE
    return engine
