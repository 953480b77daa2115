"""Throughputs of a server: amounts over its blocks / the blocks' durations.

A block has the requests of one task in one pass over the prompts, which the server completed
together. Interrupted blocks are left out: their rest ran at a lower load.
"""

from collections.abc import Callable, Sequence

import numpy as np

from specbench.analysis.cells import NOT_RUN
from specbench.analysis.stats.arrays import IntArray
from specbench.analysis.stats.bootstrap import Draws, Ratio
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.backend import BlockHeader

NO_BLOCKS = Missing("no block of vanilla at this load")
NO_PROMPT_TOKENS = Missing("unknown numbers of prompt tokens")
INTERRUPTED = Missing("all blocks were interrupted")


def throughput(
    blocks: Sequence[BlockHeader], draws: Draws, amount: Callable[[BlockHeader], float]
) -> Value:
    """Requests/s or tokens/s of a server: the sum of amounts over its blocks / the sum of seconds.

    `amount` gives the number of requests or of tokens of a block. `draws` resamples blocks, for the
    interval. A block in which everything failed has the amount 0: its seconds count, and there is
    no interval then. Missing if all blocks were interrupted, or if all amounts are 0.
    """
    # An interrupted block has requests done before the interruption (`num_before`).
    whole_blocks = [block for block in blocks if not block.num_before]
    if blocks and not whole_blocks:
        return INTERRUPTED
    timed_blocks = [block for block in whole_blocks if block.duration_s > 0]
    amounts = np.array([[amount(block)] for block in timed_blocks], dtype=np.float64)  # [blocks, 1]
    if not amounts.any():
        return NOT_RUN
    durations_s = np.array([[block.duration_s] for block in timed_blocks])  # [blocks, 1]
    ratio = Ratio(amounts, durations_s)
    return draws.estimate(ratio) if amounts.all() else ratio.estimate


def throughput_ratio(
    blocks: Sequence[BlockHeader], baseline_blocks: Sequence[BlockHeader], draws: Draws
) -> Value:
    """Output tokens/s of a server / those of vanilla's server, with an interval over blocks.

    A block counts if it and vanilla's block of the same task and pass have tokens and seconds, and
    were not interrupted. Missing if there is no such pair.
    """
    baseline_by_key = _comparable(baseline_blocks)  # by task and pass
    # A row per pair of blocks. Ratio = (tokens * vanilla's seconds) / (seconds * vanilla's tokens),
    # each summed over the pairs.
    top_rows = []
    bottom_rows = []
    for key, block in _comparable(blocks).items():
        if baseline_block := baseline_by_key.get(key):
            top_rows.append([block.num_tokens, baseline_block.duration_s])
            bottom_rows.append([block.duration_s, baseline_block.num_tokens])
    if not top_rows:
        return NO_BLOCKS
    return draws.estimate(Ratio(np.array(top_rows), np.array(bottom_rows)))


def total_throughput(output: Value, num_tokens: IntArray, prompt_tokens: IntArray) -> Value:
    """Prompt and output tokens/s of a server, from its output tokens/s.

    `num_tokens` and `prompt_tokens` [completions] are the output and prompt tokens of the completed
    requests. Missing if the prompt tokens of any request are unknown (0).
    """
    if isinstance(output, Missing) or not output.value or not num_tokens.any():
        return NOT_RUN
    if not prompt_tokens.all():
        return NO_PROMPT_TOKENS
    # output tokens/s * (prompt and output tokens / output tokens)
    rate_per_token = output.value / int(num_tokens.sum())
    return Estimate(int((num_tokens + prompt_tokens).sum()) * rate_per_token)


def _comparable(blocks: Sequence[BlockHeader]) -> dict[tuple[str, int], BlockHeader]:
    """Blocks with tokens and seconds that were measured in one go, by task and pass."""
    whole = [
        block for block in blocks if block.num_tokens and block.duration_s and not block.num_before
    ]
    return {(block.task, block.repeat): block for block in whole}
