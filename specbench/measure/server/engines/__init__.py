"""Serving engines that specbench can start: one file each, with an `ENGINE`."""

from pkgutil import iter_modules

NAMES = tuple(sorted(one.name for one in iter_modules(__path__)))
"""Names of the engines on the command line: the names of their files."""
