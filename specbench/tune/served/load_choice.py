"""Choose a draft size at each load, and find the load up to which speculation pays.

Sizes and plain decoding are measured in turns. A size is compared with plain decoding over the
blocks of the same tasks and passes. It is recommended only if it is as fast as plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from specbench.analysis.break_even import BreakEven, break_even
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.throughput import throughput_ratio
from specbench.errors import UserError
from specbench.log.backend import BlockHeader
from specbench.settings.load_table import LoadTable
from specbench.tune.served.draft_size import PLAIN, DraftSize, TunedMethod
from specbench.tune.served.prediction import Blocks, tokens_per_s

NOT_WORSE = 0.98
"""A smaller size may replace the fastest if it has at least this share of the fastest one's
throughput. A size is recommended only if it has at least this share of plain decoding's.
"""


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """A size, as measured at one load."""

    size: DraftSize
    tokens_per_s: float
    """The tokens/s of all requests together."""
    ratio: Estimate
    """The throughput of the size / the throughput of plain decoding."""


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """The choice at one load."""

    load: int
    """The number of requests at once."""
    measured: tuple[MeasuredSize, ...]
    """The measurements: plain decoding first, then the sizes from the smallest."""
    noise: float
    """The share by which two equal servers may differ at this load, with 95 % confidence. It is
    infinite if it is unknown.
    """
    chosen: MeasuredSize
    """The chosen size, or plain decoding."""
    fastest: MeasuredSize
    """The size, or plain decoding, with the highest measured throughput."""

    @property
    def best_draft(self) -> MeasuredSize:
        """The chosen size; if plain decoding was chosen, the fastest size that drafts."""
        if self.chosen.size != PLAIN:
            return self.chosen
        return max(self.measured[1:], key=lambda measured: measured.ratio.value)

    @property
    def paying(self) -> set[DraftSize]:
        """The sizes that may be recommended at this load, without plain decoding."""
        drafting = self.measured[1:]  # without plain decoding
        return {measured.size for measured in drafting if measured.ratio.value >= NOT_WORSE}

    def token_s(self, size: DraftSize) -> float:
        """Compute the seconds per token of one request with a size; infinite if the size failed."""
        speeds = (measured.tokens_per_s for measured in self.measured if measured.size == size)
        speed = next(speeds, 0.0)  # tokens/s of all requests together; 0 if the size failed
        return self.load / speed if speed else math.inf


class SizeFrom(NamedTuple):
    """A size that applies from a load up to the load of the next entry."""

    load: int
    """The number of requests at once from which the size applies."""
    size: DraftSize


@dataclass(frozen=True)
class MethodResult:
    """The choices for a method, by rising load."""

    method: TunedMethod
    acceptance: tuple[float, ...]
    """The share of drafts whose first i tokens are accepted, for i = 1, 2, ...; empty if unused."""
    choices: tuple[LoadChoice, ...]
    """The choices, one per measured load."""

    @property
    def file_name(self) -> str:
        """The method's label for file names, with "-" in place of all but letters and digits."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.method.label)

    @property
    def is_drafting(self) -> bool:
        """True if a draft size was chosen at some measured load."""
        return any(choice.chosen.size != PLAIN for choice in self.choices)

    @cached_property
    def break_even(self) -> BreakEven:
        """The load up to which the best size is faster than plain decoding."""
        return break_even({choice.load: choice.best_draft.ratio for choice in self.choices})

    def size_at(self, load: int) -> DraftSize:
        """Return the size for any load. Beyond the measured loads, the nearest one decides."""
        for choice, following in pairwise(self.choices):
            if choice.load < load < following.load:
                return _size_between(choice, following, load)
        nearest = min(self.choices, key=lambda choice: abs(choice.load - load))
        return nearest.chosen.size

    @property
    def sizes_by_load(self) -> list[SizeFrom]:
        """The sizes for all loads. Each applies up to the next entry, and the last without end."""
        all_loads = range(1, self.choices[-1].load + 1)
        # A group has successive loads with the same size.
        groups = groupby(all_loads, key=self.size_at)
        return [SizeFrom(next(loads), size) for size, loads in groups]

    @property
    def table(self) -> LoadTable:
        """The numbers of draft tokens by load."""
        return LoadTable.of((load, size.num_tokens) for load, size in self.sizes_by_load)


def _size_between(choice: LoadChoice, following: LoadChoice, load: int) -> DraftSize:
    """Find the size for a load between the measured loads of `choice` and `following`.

    The candidates are the sizes chosen at the two loads, and the sizes that pay at both. The
    fastest of them is returned. The time per token of one request is assumed to be linear in the
    load, since each request adds rows to a step. If plain decoding was chosen at one of the loads,
    it is returned: drafts are recommended only between loads at which they were measured to pay.
    """
    chosen_sizes = {choice.chosen.size, following.chosen.size}
    if PLAIN in chosen_sizes:
        return PLAIN
    sizes = chosen_sizes | (choice.paying & following.paying)
    share = (load - choice.load) / (following.load - choice.load)  # of the way to `following`
    token_s_of = {  # seconds per token of one request, the smallest size first
        size: (1 - share) * choice.token_s(size) + share * following.token_s(size)
        for size in sorted(sizes, key=lambda size: size.num_tokens)
    }
    return min(token_s_of, key=token_s_of.__getitem__)  # the smaller of two equally fast sizes


def choose(sizes: Sequence[DraftSize], blocks: Blocks, load: int) -> LoadChoice:
    """Choose plain decoding or one of the draft sizes at a load.

    The choice is the smallest size that is about as fast as the fastest size: its throughput is at
    least NOT_WORSE times the fastest size's, and the two differ no more than equal servers may.
    Plain decoding counts as the smallest size. A size is left out if it shares no task and pass
    with plain decoding. `blocks` has only those in which every request was answered, without an
    interruption.

    Args:
        sizes: the draft sizes, the smallest first.
        blocks: what was measured with each size and plain decoding: tokens and seconds of blocks.
        load: requests at once.

    Raises:
        UserError: plain decoding has no blocks at this load, or every size is left out.
    """
    plain_blocks = blocks.at(PLAIN, load)
    draws = Draws(Bootstrap(), f"load {load}")  # resamples for the interval of a ratio
    measured_sizes = [MeasuredSize(PLAIN, tokens_per_s(plain_blocks), Estimate(1.0))]
    for size in sizes:
        size_blocks = blocks.at(size, load)
        ratio = throughput_ratio(size_blocks, plain_blocks, draws)
        if isinstance(ratio, Estimate):  # otherwise the two share no task and pass
            measured_sizes.append(MeasuredSize(size, tokens_per_s(size_blocks), ratio))
    if len(measured_sizes) == 1:
        failed = "All draft sizes" if plain_blocks else "Plain decoding"
        raise UserError(
            f"{failed} gave no answer at {load} requests at once.",
            "See the logs of the engines in the folder, and the errors in its samples.jsonl.",
        )
    noise = noise_of([blocks.at(measured.size, load) for measured in measured_sizes])
    fastest = max(measured_sizes, key=lambda measured: measured.ratio.value)
    # throughput relative to plain decoding
    least_ratio = fastest.ratio.value * max(NOT_WORSE, 1 / (1 + noise))
    chosen = next(measured for measured in measured_sizes if measured.ratio.value >= least_ratio)
    return LoadChoice(load, tuple(measured_sizes), noise, chosen=chosen, fastest=fastest)


def noise_of(blocks_of_sizes: Sequence[Sequence[BlockHeader]]) -> float:
    """Compute the share by which two equal servers may differ at one load, with 95 % confidence.

    Per task, log(tokens/s) of a size in a pass is modelled as an effect of the size + an effect of
    the pass + noise of standard deviation s. Two means over n blocks then differ by up to t * s *
    sqrt(2 / n), where t is a quantile of Student's t. Infinite if there are no degrees of freedom,
    such as after one pass.

    `blocks_of_sizes` has the blocks of each size. A block has the tokens and the seconds of one
    task in one pass (`repeat`).
    """
    # per size: log(tokens/s) by task and pass
    logs_of_sizes = [
        {
            (block.task, block.repeat): math.log(block.num_tokens / block.duration_s)
            for block in blocks
        }
        for blocks in blocks_of_sizes
    ]
    # the pairs of a task and a pass that all sizes have
    shared_keys = sorted(set.intersection(*({*log_by_key} for log_by_key in logs_of_sizes)))
    squares = 0.0  # sum of squared residuals
    degrees = 0  # of freedom
    for task in sorted({task for task, _ in shared_keys}):
        logs = np.array(  # [sizes, passes]; key[0] is the task
            [
                [log_by_key[key] for key in shared_keys if key[0] == task]
                for log_by_key in logs_of_sizes
            ]
        )
        # the noise: what neither the mean of the size nor the mean of the pass explains
        residuals = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
        squares += float((residuals**2).sum())
        degrees += (logs.shape[0] - 1) * (logs.shape[1] - 1)  # (sizes - 1) * (passes - 1)
    if not degrees:
        return math.inf
    # the formula above, converted back from logarithms, with s ** 2 = squares / degrees
    return math.expm1(quantile(degrees) * math.sqrt(squares / degrees * 2 / len(shared_keys)))
