"""The choice of a draft size at each load, and the load up to which speculation pays.

Sizes and plain decoding were measured in turns. A size is compared with plain decoding over the
blocks of the same tasks and passes. It is recommended only if it is as fast as plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
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
"""A smaller size may replace the fastest one if it has at least this share of its speed. A size is
recommended at all only if it has at least this share of the speed of plain decoding.
"""


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """A size as measured at one load."""

    size: DraftSize
    """The size."""
    tokens_per_s: float
    """Tokens/s of all requests together."""
    ratio: Estimate
    """Throughput of the size / throughput of plain decoding."""


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """The choice at one load."""

    load: int
    """Requests at once."""
    measured: tuple[MeasuredSize, ...]
    """Plain decoding first, then the sizes from the smallest."""
    noise: float
    """The share by which two equal servers differ here, at 95 %; infinite if that is unknown."""
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
        """The sizes that may be recommended here, plain decoding aside."""
        drafting = self.measured[1:]
        return {entry.size for entry in drafting if entry.ratio.value >= NOT_WORSE}

    def token_s(self, size: DraftSize) -> float:
        """Seconds per token of one request with a size; infinite if it failed at this load."""
        speeds = (entry.tokens_per_s for entry in self.measured if entry.size == size)
        speed = next(speeds, 0.0)
        return self.load / speed if speed else math.inf


class SizeFrom(NamedTuple):
    """A size for its load and larger ones, up to the load of the next entry."""

    load: int
    """Requests at once."""
    size: DraftSize
    """The size."""


@dataclass(frozen=True)
class MethodResult:
    """The choices of a method, by rising load."""

    method: TunedMethod
    """The method."""
    acceptance: tuple[float, ...]
    """The share of drafts whose first i tokens are accepted, for i = 1, 2, ...; empty if it was not
    used.
    """
    choices: tuple[LoadChoice, ...]
    """One per measured load."""

    @property
    def file_name(self) -> str:
        """The method's label in file names: "-" replaces all but letters and digits."""
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
        """The size for any load. Beyond the measured loads, it is the nearest load's size."""
        for choice, following in pairwise(self.choices):
            if choice.load < load < following.load:
                return _size_between(choice, following, load)
        nearest = min(self.choices, key=lambda choice: abs(choice.load - load))
        return nearest.chosen.size

    @property
    def sizes_by_load(self) -> list[SizeFrom]:
        """The sizes by load. The last one holds for all larger loads."""
        changes: list[SizeFrom] = []
        for load in range(1, self.choices[-1].load + 1):
            size = self.size_at(load)
            if not changes or changes[-1].size != size:
                changes.append(SizeFrom(load, size))
        return changes

    @property
    def table(self) -> LoadTable:
        """Draft tokens by load."""
        return LoadTable.of((load, size.num_tokens) for load, size in self.sizes_by_load)


def _size_between(choice: LoadChoice, following: LoadChoice, load: int) -> DraftSize:
    """The size for a load between two neighbours that were measured.

    It is the fastest of the two chosen sizes and of those that pay at both loads: the time per
    token of one request is taken to lie on a straight line over the load, since each request adds
    rows to a step. It is plain decoding if that was chosen at one of the two loads: drafts are
    recommended only where they were measured to pay.
    """
    chosen = {choice.chosen.size, following.chosen.size}
    if PLAIN in chosen:
        return PLAIN
    sizes = chosen | (choice.paying & following.paying)
    share = (load - choice.load) / (following.load - choice.load)
    token_s_of = {
        size: (1 - share) * choice.token_s(size) + share * following.token_s(size)
        for size in sorted(sizes, key=lambda size: size.num_tokens)
    }
    return min(token_s_of, key=token_s_of.__getitem__)  # the smaller of two equal ones


def choose(sizes: Sequence[DraftSize], blocks: Blocks, load: int) -> LoadChoice:
    """Choose among plain decoding and sizes at a load.

    The choice is the smallest size that has at least NOT_WORSE of the fastest size's speed, and
    that differs from it by no more than two equal servers differ.

    Raises:
        UserError: plain decoding, or every size, gave no answer at this load.
    """
    plain_blocks = blocks.at(PLAIN, load)
    draws = Draws(Bootstrap(), f"load {load}")
    measured = [MeasuredSize(PLAIN, tokens_per_s(plain_blocks), Estimate(1.0))]
    for size in sizes:
        size_blocks = blocks.at(size, load)
        ratio = throughput_ratio(size_blocks, plain_blocks, draws)
        if isinstance(ratio, Estimate):  # otherwise it failed
            measured.append(MeasuredSize(size, tokens_per_s(size_blocks), ratio))
    if len(measured) == 1:
        failed = "All draft sizes" if plain_blocks else "Plain decoding"
        raise UserError(
            f"{failed} gave no answer at {load} requests at once.",
            "See the logs of the engines in the folder, and the errors in its samples.jsonl.",
        )
    noise = noise_of([blocks.at(entry.size, load) for entry in measured])
    fastest = max(measured, key=lambda entry: entry.ratio.value)
    least = fastest.ratio.value * max(NOT_WORSE, 1 / (1 + noise))
    chosen = next(entry for entry in measured if entry.ratio.value >= least)
    return LoadChoice(load, tuple(measured), noise, chosen=chosen, fastest=fastest)


def noise_of(blocks_of_sizes: Sequence[Sequence[BlockHeader]]) -> float:
    """The share by which two equal servers differ at one load, at 95 %: the machine's A/A.

    Model: log(tokens/s) of a size on a task in a pass = a number of the size + a number of the
    pass, which all sizes share, + noise of standard deviation s. Two means over n blocks then
    differ by t * s * sqrt(2 / n). Infinite after one pass.
    """
    logs_of_sizes = [
        {
            (block.task, block.repeat): math.log(block.num_tokens / block.duration_s)
            for block in blocks
        }
        for blocks in blocks_of_sizes
    ]
    keys = sorted(set.intersection(*({*logs} for logs in logs_of_sizes)))
    squares = 0.0
    degrees = 0
    for task in sorted({task for task, _ in keys}):
        logs = np.array(  # [sizes, passes]
            [[by_key[key] for key in keys if key[0] == task] for by_key in logs_of_sizes]
        )
        rest = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
        squares += float((rest**2).sum())
        degrees += (logs.shape[0] - 1) * (logs.shape[1] - 1)
    if not degrees:
        return math.inf
    return math.expm1(quantile(degrees) * math.sqrt(squares / degrees * 2 / len(keys)))
