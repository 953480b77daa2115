"""Serving engines that specbench can start: one file each, with an `ENGINE`."""

from pkgutil import iter_modules

NAMES = tuple(sorted(one.name for one in iter_modules(__path__)))
"""Engines by their name on the command line, which is that of their file."""
