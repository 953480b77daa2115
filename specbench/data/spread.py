"""Choose the order in which `--limit` takes the prompts of a file.

The first N prompts of this order are spread over the file and its categories. They contain the
first M prompts for every M below N.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, zip_longest


def spread_order(categories: Sequence[str]) -> list[int]:
    """Return the positions of a file's prompts, spread out, one from each category in turn.

    Args:
        categories: the category of each prompt, in the order of the file. Categories take turns
            in the order in which they first appear.
    """
    positions_by_category: defaultdict[str, list[int]] = defaultdict(list)
    for position, category in enumerate(categories):
        positions_by_category[category].append(position)
    orders = [
        [positions[index] for index in _middles(len(positions))]
        for positions in positions_by_category.values()
    ]
    rounds = zip_longest(*orders)
    return [position for position in chain.from_iterable(rounds) if position is not None]


def _middles(length: int) -> Iterator[int]:
    """Yield the indices below `length`: each is the middle of the largest gap between earlier ones.

    Among equal gaps, the first is taken. If a gap has two middles, the lower one is taken.
    """
    gaps = [(-length, 0)]  # as (-size, first index)
    while gaps:
        negative_size, first = heappop(gaps)
        size = -negative_size
        if size:
            num_before = (size - 1) // 2
            middle = first + num_before
            yield middle
            heappush(gaps, (-num_before, first))
            heappush(gaps, (-(size - 1 - num_before), middle + 1))
