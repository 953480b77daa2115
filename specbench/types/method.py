"""Names and types with which methods declare their options, memory and acceptance profile."""

from dataclasses import field
from typing import Literal, TypeAlias, TypeVar

BASELINE = "vanilla"
"""The method that speedups are relative to."""

Scope = Literal["request", "run"]
"""Lifetime of a method's memory: one request, or all requests of a pass."""


ProfileKind: TypeAlias = str
"""The kind of data that an acceptance profile has for each position of an answer. It is the name of
a module in `specbench.tune.kinds`, such as "pool" or "text".
"""

OptionT = TypeVar("OptionT")


def option(default: OptionT, text: str, **limits: float) -> OptionT:
    """Declare an option of a method, with its default, its help and its limits (min and max)."""
    return field(default=default, metadata={"help": text, **limits})
