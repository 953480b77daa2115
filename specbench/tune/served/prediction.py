"""Predict the speed of each draft size by load, from acceptance and the times of steps.

A step with a draft of K tokens emits the accepted tokens and one more. Let a_i be the share of
drafts whose first i tokens are all accepted, and steps/s the rate of all requests together at a
load:

    tokens/s = steps/s * (1 + a_1 + ... + a_K)

The a_i of one run with the largest K hold for every smaller K if drafts are made token by token.
They do not depend on the load, so only the steps are timed at each K and load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specbench.analysis.grouping import group_by
from specbench.analysis.server_counters import counter_total
from specbench.log.backend import BlockHeader
from specbench.tune.served.draft_size import DraftSize, TunedMethod

NUM_CANDIDATES = 2
"""The number of sizes per method and load that are measured: the fastest by prediction."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of requests, by the label of the server and the number of requests at once."""

    by_cell: Mapping[tuple[str, int], Sequence[BlockHeader]] = field(default_factory=dict)
    """The blocks by label and requests at once. There is at least one block for each."""

    @classmethod
    def of(cls, blocks: Iterable[BlockHeader]) -> Blocks:
        """Keep the blocks in which every request was answered, without an interruption."""
        whole_blocks = [
            block
            for block in blocks
            if not (block.num_failed or block.num_before)
            and block.num_tokens
            and block.duration_s > 0
        ]
        return cls(group_by(whole_blocks, key=lambda block: (block.method, block.concurrency)))

    def at(self, size: DraftSize, load: int) -> Sequence[BlockHeader]:
        """Return the blocks of a size at a load."""
        return self.by_cell.get((size.label, load), ())


def tokens_per_s(blocks: Sequence[BlockHeader]) -> float:
    """Divide the tokens of the answers by seconds; 0 without blocks."""
    if not blocks:
        return 0.0
    return sum(block.num_tokens for block in blocks) / sum(block.duration_s for block in blocks)


def predicted_tokens_per_s(
    size: DraftSize, acceptance: Sequence[float], blocks: Sequence[BlockHeader]
) -> float:
    """Predict the tokens/s of a size at a load; 0 without blocks.

    `blocks` are the blocks of the size at this load. If `acceptance` by position is known, only the
    steps of the blocks are used; otherwise their tokens are.
    """
    if not acceptance or not blocks:
        return tokens_per_s(blocks)
    steps_per_s = counter_total(blocks, "num_drafts") / sum(block.duration_s for block in blocks)
    return steps_per_s * (1 + sum(acceptance[: size.num_tokens]))


def smooth_tokens_per_s(
    sizes: Sequence[DraftSize], acceptance: Sequence[float], short_blocks: Blocks, load: int
) -> dict[DraftSize, float]:
    """Predict the tokens/s of draft sizes at a load, from smoothed times of their steps.

    A step costs no less with more draft tokens K, and each further token costs no less than the
    token before. So the seconds of a step are fitted by a line whose slope may grow at each of the
    sizes K_j but the first and the last:

        t(K) = a + b * K + sum over j of c_j * max(0, K - K_j),  a, b, c_j >= 0

    Neighbours thus correct the time of a size whose server happened to be slow or fast. The fit
    minimises the squares of relative errors.

    Args:
        sizes: sizes with blocks and drafts at this load, the smallest first.
        acceptance: the share of drafts whose first i tokens are all accepted, for i = 1, 2, ...
        short_blocks: blocks of short answers, with their seconds and numbers of drafts.
        load: requests at once.
    """
    from scipy.optimize import nnls

    step_s: dict[DraftSize, float] = {}  # seconds per step (one per draft), of all requests
    for size in sizes:
        blocks = short_blocks.at(size, load)
        duration_s = sum(block.duration_s for block in blocks)
        step_s[size] = duration_s / counter_total(blocks, "num_drafts")
    seconds = np.array([*step_s.values()])  # [sizes]
    num_tokens = np.array([size.num_tokens for size in step_s], dtype=np.float64)  # K [sizes]
    bends = np.maximum(0, num_tokens[:, None] - num_tokens[1:-1])  # max(0, K - K_j) [sizes, bends]
    terms = np.column_stack([np.ones_like(num_tokens), num_tokens, bends])  # of a, b, c_j
    # Divided by the measured seconds, errors are relative.
    factors, _ = nnls(terms / seconds[:, None], np.ones_like(seconds))  # a, b, c_j
    smooth_s = (terms @ factors).tolist()  # t(K), by size
    return {
        size: (1 + sum(acceptance[: size.num_tokens])) / size_s
        for size, size_s in zip(step_s, smooth_s, strict=True)
    }


def candidates(
    method: TunedMethod, acceptance: Sequence[float], blocks: Blocks, loads: Sequence[int]
) -> list[DraftSize]:
    """List the sizes of a method that are predicted to be fastest at some load, the smallest first.

    Without `acceptance`, they are the NUM_CANDIDATES fastest of each load. With `acceptance`, they
    are the fastest of each load, and the NUM_CANDIDATES fastest by smoothed times of steps.

    Args:
        method: has the sizes to try.
        acceptance: the share of drafts whose first i tokens are all accepted, for i = 1, 2, ...;
            empty if it is not known.
        blocks: blocks with every size at every load; if `acceptance` is known, of short answers.
        loads: requests at once.
    """
    chosen: set[DraftSize] = set()
    for load in loads:
        # Predicted from `acceptance` if it is known, else measured. 0 without blocks or drafts.
        tokens_per_s_of = {
            size: predicted_tokens_per_s(size, acceptance, blocks.at(size, load))
            for size in method.sizes
        }
        working_sizes = [size for size in method.sizes if tokens_per_s_of[size]]
        fastest_first = sorted(working_sizes, key=lambda size: -tokens_per_s_of[size])
        if acceptance and working_sizes:
            smooth_speed_of = smooth_tokens_per_s(working_sizes, acceptance, blocks, load)
            chosen.add(fastest_first[0])
            fastest_first = sorted(working_sizes, key=lambda size: -smooth_speed_of[size])
        chosen.update(fastest_first[:NUM_CANDIDATES])
    return [size for size in method.sizes if size in chosen]
