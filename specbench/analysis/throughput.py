"""Compute the throughput of a server: sums over its blocks / the durations of the blocks.

A block has the requests of one task in one pass over the prompts, which the server completed
together. Interrupted blocks are left out, since their rest ran at a lower load.
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
    """Compute requests/s or tokens/s of a server: a sum of amounts over blocks / their seconds.

    `amount` returns the number of requests or of tokens of a block. `draws` resamples blocks, for
    the interval. A block in which everything failed has the amount 0: its seconds count, but then
    there is no interval. The result is missing if all blocks were interrupted, or if all amounts
    are 0.
    """
    # an interrupted block has requests that were done before the interruption (`num_before`)
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
    """Divide a server's output tokens/s by those of vanilla's server, with an interval over blocks.

    A block counts if it and vanilla's block of the same task and pass have tokens and seconds, and
    were not interrupted. The result is missing if there is no such pair. `draws` resamples pairs.
    """
    baseline_by_key = _comparable(baseline_blocks)  # by task and pass
    # Factors of the ratio, a row for each pair of blocks. The ratio is (tokens * vanilla's seconds)
    # / (seconds * vanilla's tokens), each summed over the pairs.
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
    """Compute a server's prompt and output tokens/s from its output tokens/s.

    `num_tokens` and `prompt_tokens` are numbers of output and prompt tokens of completed requests
    [completions]. The result is missing if the prompt tokens of any request are unknown (0).
    """
    if isinstance(output, Missing) or not output.value or not num_tokens.any():
        return NOT_RUN
    if not prompt_tokens.all():
        return NO_PROMPT_TOKENS
    # output tokens/s * (prompt and output tokens / output tokens)
    rate_per_token = output.value / int(num_tokens.sum())  # rate / number of output tokens
    return Estimate(int((num_tokens + prompt_tokens).sum()) * rate_per_token)


def _comparable(blocks: Sequence[BlockHeader]) -> dict[tuple[str, int], BlockHeader]:
    """Select the blocks with tokens and seconds that were not interrupted, by task and pass."""
    whole = [
        block for block in blocks if block.num_tokens and block.duration_s and not block.num_before
    ]
    return {(block.task, block.repeat): block for block in whole}
