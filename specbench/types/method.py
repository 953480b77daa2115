"""Declarations of a method: its name, its options, its memory and its profile."""

from dataclasses import field
from typing import Literal, TypeAlias, TypeVar

BASELINE = "vanilla"
"""The method that speedups compare with."""

Scope = Literal["request", "run"]
"""Lifetime of a method's memory: one request, or all requests of a pass."""


ProfileKind: TypeAlias = str
"""Kind of data that an acceptance profile holds for each position of an answer: the name of a
module of `specbench.tune.kinds`, such as "pool" or "text".
"""

OptionT = TypeVar("OptionT")


def option(default: OptionT, text: str, **limits: float) -> OptionT:
    """Declare a field of a method's options: its default, help, and limits (min and max)."""
    return field(default=default, metadata={"help": text, **limits})
