"""Count the requests that a server worked on at once, from the starts and ends of its answers."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from specbench.log.backend import BlockHeader
from specbench.log.run import BlockKey, block_key
from specbench.types import Record


@dataclass(frozen=True, slots=True)
class InFlight:
    """The number of requests that a server worked on at once."""

    mean: float = 0.0
    """The mean over time."""

    most: int = 0
    """The largest number at any time."""

    least_most: int = 0
    """The largest number in a block, for the block where it is smallest."""


NONE_IN_FLIGHT = InFlight()


def requests_in_flight(blocks: Sequence[BlockHeader], done: Iterable[Record]) -> InFlight:
    """Compute the mean and the largest number of requests that a server worked on at once.

    They are computed from the starts and ends of the answers (`done`, the completed records) and
    the durations of blocks. `least_most` is the smallest maximum of a block. A block is a
    group of requests of one method, temperature, task, pass and load that the server completed
    together. Interrupted blocks are left out. If no block is left, all numbers are 0.
    """
    # An interrupted block has several parts that share a key. In later parts `num_before` counts
    # the requests that were done before.
    interrupted_keys = {block_key(block) for block in blocks if block.num_before}
    # Seconds of each uninterrupted block.
    duration_of_block = {
        block_key(block): block.duration_s
        for block in blocks
        if block_key(block) not in interrupted_keys
    }
    # The events of each block. An event has the seconds since the block's start, and +1 for the
    # start of a request or -1 for its end.
    events_of_block: dict[BlockKey, list[tuple[float, int]]] = defaultdict(list)
    for record in done:
        key = block_key(record.key)  # of the block that the answer belongs to
        # only answers of servers (`serving`) whose seconds (`wall_s`) are known
        if record.serving and record.wall_s and key in duration_of_block:
            start_s = record.serving.began_s  # since the start of the block
            events_of_block[key] += [(start_s, 1), (start_s + record.wall_s, -1)]
    most_of_blocks = []  # the most requests at once in each block
    in_flight_s = 0.0  # seconds of all requests: the sum of their ends - the sum of their starts
    for events in events_of_block.values():
        changes = (change for _, change in sorted(events))  # +1 or -1, in order of time
        most_of_blocks.append(max(accumulate(changes)))
        for time_s, change in events:
            in_flight_s -= time_s * change
    duration_s = sum(duration_of_block[key] for key in events_of_block)
    if not duration_s:
        return NONE_IN_FLIGHT
    return InFlight(
        mean=in_flight_s / duration_s,
        most=max(most_of_blocks),
        least_most=min(most_of_blocks),
    )
