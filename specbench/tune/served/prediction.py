"""The speed of each draft size by load, predicted from acceptance and steps, or from short blocks.

A step with a draft of K tokens emits the accepted ones and one more. With a_i, the share of drafts
whose first i tokens are all accepted, and steps/s of all requests together at K and a load:

    tokens/s = steps/s * (1 + a_1 + ... + a_K)

The a_i of one run with the largest K hold for every smaller K if drafts are made token by token.
They do not depend on the load, so only the steps are timed at each K and load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from specbench.log.backend import BlockHeader
from specbench.tune.served.draft_size import DraftSize, TunedMethod

NUM_CANDIDATES = 2
"""Sizes per method and load that are measured: the fastest by prediction."""
_POSITION = "accepted_at_"
"""Prefix of the counters of accepted tokens by position, from 1: "accepted_at_1"."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of requests by the label of their server and the requests at once."""

    by_cell: Mapping[tuple[str, int], Sequence[BlockHeader]] = field(default_factory=dict)
    """Blocks by label and requests at once, at least one block each."""

    @classmethod
    def of(cls, blocks: Iterable[BlockHeader]) -> Blocks:
        """The blocks that count: every request was answered, without an interruption."""
        by_cell: dict[tuple[str, int], list[BlockHeader]] = {}
        for block in blocks:
            is_whole = not block.num_failed and not block.num_before
            if is_whole and block.num_tokens and block.duration_s > 0:
                by_cell.setdefault((block.method, block.concurrency), []).append(block)
        return cls(by_cell)

    def at(self, size: DraftSize, load: int) -> Sequence[BlockHeader]:
        """The blocks of a size at a load; empty if all failed."""
        return self.by_cell.get((size.label, load), ())


def acceptance_by_position(blocks: Sequence[BlockHeader]) -> tuple[float, ...]:
    """The share of drafts whose first i tokens are all accepted, for i = 1, 2, ...

    Computed from the growth of the server's counters. Empty if the server does not count by
    position.
    """
    num_drafts = _counted(blocks, "num_drafts")
    if not num_drafts:
        return ()
    num_positions = sum(
        name.startswith(_POSITION) for name in {name for block in blocks for name in block.counters}
    )
    return tuple(
        _counted(blocks, f"{_POSITION}{position}") / num_drafts
        for position in range(1, num_positions + 1)
    )


def tokens_per_s(blocks: Sequence[BlockHeader]) -> float:
    """Tokens of the answers / seconds; 0 without blocks."""
    if not blocks:
        return 0.0
    return sum(block.num_tokens for block in blocks) / sum(block.duration_s for block in blocks)


def predicted_tokens_per_s(
    size: DraftSize, acceptance: Sequence[float], blocks: Sequence[BlockHeader]
) -> float:
    """The tokens/s of a size at a load; 0 if its blocks failed.

    `blocks` are the size's blocks at this load. If `acceptance` by position is known, only their
    steps are used; if it is empty, their tokens are used.
    """
    if not acceptance or not blocks:
        return tokens_per_s(blocks)
    steps_per_s = _counted(blocks, "num_drafts") / sum(block.duration_s for block in blocks)
    return steps_per_s * (1 + sum(acceptance[: size.num_tokens]))


def smooth_tokens_per_s(
    sizes: Sequence[DraftSize], acceptance: Sequence[float], short_blocks: Blocks, load: int
) -> dict[DraftSize, float]:
    """The tokens/s of sizes that drafted at a load, from smooth times of their steps.

    More draft tokens do not make a step cheaper, and each further token costs no less than the
    token before. So the seconds of a step are fitted with rising bends, by relative least squares:

        t(K) = a + b * K + sum over sizes j of c_j * max(0, K - K_j),  a, b, c_j >= 0

    The fit corrects the time of a size whose server happened to be slow or fast by its neighbours.
    """
    from scipy.optimize import nnls

    step_s: dict[DraftSize, float] = {}
    for size in sizes:
        blocks = short_blocks.at(size, load)
        step_s[size] = sum(block.duration_s for block in blocks) / _counted(blocks, "num_drafts")
    seconds = np.array([*step_s.values()])
    num_tokens = np.array([size.num_tokens for size in step_s], dtype=np.float64)
    bends = np.maximum(0, num_tokens[:, None] - num_tokens[1:-1])  # [sizes, bends]
    terms = np.column_stack([np.ones_like(num_tokens), num_tokens, bends])
    factors, _ = nnls(terms / seconds[:, None], np.ones_like(seconds))
    smooth_s = (terms @ factors).tolist()
    return {
        size: (1 + sum(acceptance[: size.num_tokens])) / size_s
        for size, size_s in zip(step_s, smooth_s, strict=True)
    }


def candidates(
    method: TunedMethod, acceptance: Sequence[float], short_blocks: Blocks, loads: Sequence[int]
) -> list[DraftSize]:
    """The sizes of a method to measure, the smallest first: those predicted to be fastest at some
    load.

    Per load they are the NUM_CANDIDATES fastest by the blocks. With an `acceptance` by position,
    they are the fastest by the blocks, and the NUM_CANDIDATES fastest by smooth times of steps.
    """
    chosen: set[DraftSize] = set()
    for load in loads:
        speed_of = {
            size: predicted_tokens_per_s(size, acceptance, short_blocks.at(size, load))
            for size in method.sizes
        }
        answering = [size for size in method.sizes if speed_of[size]]
        fastest_first = sorted(answering, key=lambda size: -speed_of[size])
        if acceptance and answering:
            smooth = smooth_tokens_per_s(answering, acceptance, short_blocks, load)
            chosen.add(fastest_first[0])
            fastest_first = sorted(answering, key=lambda size: -smooth[size])
        chosen.update(fastest_first[:NUM_CANDIDATES])
    return [size for size in method.sizes if size in chosen]


def _counted(blocks: Sequence[BlockHeader], counter: str) -> float:
    """The growth of a server's counter over blocks."""
    return sum(block.counters.get(counter, 0.0) for block in blocks)
