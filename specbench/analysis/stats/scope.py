"""Describe what the intervals of a run's times cover: the choice of prompts, and passes or runs."""

from typing import Literal, NamedTuple

PROMPTS_ONLY = "prompts only, not the machine's variance"
"""The label of intervals from a single pass."""


class Scope(NamedTuple):
    """The number of passes or runs that intervals of times cover, besides prompts."""

    kind: Literal["passes", "runs"] = "passes"
    number: int = 1

    @property
    def is_estimated(self) -> bool:
        """True if the machine's variance is part of the intervals."""
        return self.number > 1

    @property
    def text(self) -> str:
        """The scope in words, such as "prompts and 3 passes"."""
        if not self.is_estimated:
            return PROMPTS_ONLY
        return f"prompts and {self.number} {self.kind}"


ONE_PASS = Scope()
