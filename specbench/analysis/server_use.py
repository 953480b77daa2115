"""Compute the energy and memory of servers on the client's machine, from their blocks."""

import math
from collections.abc import Sequence

from specbench.analysis.energy import MOST_HALF_WIDTH, NOT_METERED, TOO_COARSE
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.log.backend import BlockHeader, ServerUse


def uses_of(blocks: Sequence[BlockHeader]) -> list[ServerUse]:
    """List what servers used in each block that recorded it: memory and energy."""
    return [block.use for block in blocks if block.use]


def served_joules_per_token(blocks: Sequence[BlockHeader]) -> Value:
    """Compute a server's joules per token, beyond what the idle server uses in the same time.

    The result is the sum of joules / the sum of tokens, over the blocks with a measured energy. A
    block is a group of requests that the server completed together. Blocks with failed requests are
    left out, and so are blocks with requests that were sent again only to keep up the load
    (`num_repeats`), since the number of their tokens is unknown. The ticks of the energy counter
    may make the energy of n blocks wrong by sqrt(n) * tick_s * mean power. The result is missing if
    no block was metered, or if this error is more than MOST_HALF_WIDTH of the energy.
    """
    known_blocks = [block for block in blocks if not block.num_failed and not block.num_repeats]
    metered = [block for block in known_blocks if block.use and block.use.energy_j is not None]
    uses = uses_of(metered)  # energy and memory of each metered block
    num_tokens = sum(block.num_tokens for block in metered)
    duration_s = sum(block.duration_s for block in metered)
    if not num_tokens or not duration_s:
        return NOT_METERED
    joules = sum(use.energy_j or 0.0 for use in uses)  # beyond those of the idle server
    idle_j = sum(use.idle_w * block.duration_s for use, block in zip(uses, metered, strict=True))
    tick_s = max(use.tick_s for use in uses)  # seconds between ticks of the counter
    mean_power_w = (joules + idle_j) / duration_s
    tick_error_j = math.sqrt(len(metered)) * tick_s * mean_power_w
    if tick_error_j > MOST_HALF_WIDTH * joules:
        return TOO_COARSE
    return Estimate(joules / num_tokens)
