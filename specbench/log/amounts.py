"""Numbers that no run can have measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_AMOUNT = 1e10
"""Most seconds, joules, degrees or requests per second in a line of `samples.jsonl`: 1e10
seconds are 317 years, and more than any time since 1970.
"""
_MOST_IN_HEADER = 2.0**63
"""Largest number in `run.json`, which also has bytes, bytes per second and seeds."""


def huge_numbers(content: Any, path: str = "$") -> Iterator[str]:
    """The paths of numbers in a JSON value that are too large for a header, with the numbers."""
    if isinstance(content, Mapping):
        for name, part in content.items():
            yield from huge_numbers(part, f"{path}.{name}")
    elif isinstance(content, Sequence) and not isinstance(content, str):
        for index, part in enumerate(content):
            yield from huge_numbers(part, f"{path}[{index}]")
    elif isinstance(content, int | float) and abs(content) > _MOST_IN_HEADER:
        # A float cannot hold every integer.
        number = f"{content:.3g}" if isinstance(content, float) else f"{content.bit_length()} bits"
        yield f"{path}: a number of a run is never that large ({number})"
