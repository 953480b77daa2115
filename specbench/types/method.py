"""What is declared of a method: its name, its options, its memory and its profile."""

from dataclasses import field
from typing import Literal, TypeVar

BASELINE = "vanilla"
"""The method that speedups compare with."""

Scope = Literal["request", "run"]
"""Lifetime of a method's memory: one request, or all requests of a pass."""


ProfileKind = Literal["pool", "ranks", "path", "token", "text"]
"""The data that an acceptance profile has of a method, for each position of an answer.

pool: all candidates of a dynamic tree. ranks: for static trees, the answer's tokens among the
draft tokens of each depth. path: how much of a drafted chain is right. token: one bit, if a
draft token does not depend on where its draft began. text: nothing, since drafts follow from
the tokens alone.
"""

OptionT = TypeVar("OptionT")


def option(default: OptionT, text: str, **limits: float) -> OptionT:
    """Declare a field of a method's options: its default, help, and limits (min and max)."""
    return field(default=default, metadata={"help": text, **limits})
