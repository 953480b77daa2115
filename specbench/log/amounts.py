"""Find numbers that are too large to have been measured in a run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_AMOUNT = 1e10
"""The largest number of seconds, joules, degrees or requests per second in a line of
`samples.jsonl`. 1e10 seconds are 317 years, which is more than any time since 1970.
"""
_MOST_IN_HEADER = 2.0**63
"""The largest number in `run.json`, which also has bytes, bytes per second and seeds."""


def huge_numbers(content: Any, path: str = "$") -> Iterator[str]:
    """Yield a message for each number in a JSON value that is too large for a run's header.

    A message begins with the path of the number, such as "$.spec.seed". `path` is the path of
    `content` itself, and "$" is the path of a whole file.
    """
    if isinstance(content, Mapping):
        for key, inner_content in content.items():
            yield from huge_numbers(inner_content, f"{path}.{key}")
    elif isinstance(content, Sequence) and not isinstance(content, str):
        for index, element in enumerate(content):
            yield from huge_numbers(element, f"{path}[{index}]")
    elif isinstance(content, int | float) and abs(content) > _MOST_IN_HEADER:
        # A large integer is shown as its number of bits: "g" might fail to convert it to a float.
        number = f"{content:.3g}" if isinstance(content, float) else f"{content.bit_length()} bits"
        yield f"{path}: a number of a run is never that large ({number})"
