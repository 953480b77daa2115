"""Throughputs of a server: amounts over its blocks / the blocks' durations.

Interrupted blocks are left out: their rest ran at a lower load.
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
    """The throughput of an amount of a block, with an interval over blocks.

    `amount` gives the requests or tokens of a block: the sum of amounts / the sum of seconds. A
    block in which everything failed counts with its time, and leaves no interval.
    """
    # `num_before`: requests done before an interruption; the rest ran at a lower load.
    whole_blocks = [block for block in blocks if not block.num_before]
    if blocks and not whole_blocks:
        return INTERRUPTED
    timed_blocks = [block for block in whole_blocks if block.duration_s > 0]
    amounts = np.array([[amount(block)] for block in timed_blocks], dtype=np.float64)  # [blocks, 1]
    if not amounts.any():
        return NOT_RUN
    durations_s = np.array([[block.duration_s] for block in timed_blocks])
    ratio = Ratio(amounts, durations_s)
    return draws.estimate(ratio) if amounts.all() else ratio.estimate


def throughput_ratio(
    blocks: Sequence[BlockHeader], baseline_blocks: Sequence[BlockHeader], draws: Draws
) -> Value:
    """Output tokens/s / vanilla's, over the blocks of the same tasks and passes."""
    baseline_by_key = _comparable(baseline_blocks)
    # Per pair of blocks: (tokens * vanilla's seconds) / (seconds * vanilla's tokens); [pairs, 2].
    top_rows = []
    bottom_rows = []
    for key, block in _comparable(blocks).items():
        baseline_block = baseline_by_key.get(key)
        if baseline_block:
            top_rows.append([block.num_tokens, baseline_block.duration_s])
            bottom_rows.append([block.duration_s, baseline_block.num_tokens])
    if not top_rows:
        return NO_BLOCKS
    return draws.estimate(Ratio(np.array(top_rows), np.array(bottom_rows)))


def total_throughput(output: Value, num_tokens: IntArray, prompt_tokens: IntArray) -> Value:
    """Prompt and output tokens/s, from output tokens/s and the tokens of completions."""
    if isinstance(output, Missing) or not output.value or not num_tokens.any():
        return NOT_RUN
    if not prompt_tokens.all():
        return NO_PROMPT_TOKENS
    requests_per_token = output.value / int(num_tokens.sum())
    return Estimate(int((num_tokens + prompt_tokens).sum()) * requests_per_token)


def _comparable(blocks: Sequence[BlockHeader]) -> dict[tuple[str, int], BlockHeader]:
    """Blocks with tokens that were measured in one go, by task and pass."""
    whole = [block for block in blocks if block.num_tokens and not block.num_before]
    return {(block.task, block.repeat): block for block in whole}
