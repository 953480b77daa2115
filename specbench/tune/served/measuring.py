"""The measurements of a tune of servers, in their order: acceptance, steps, then turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specbench.log.backend import BlockHeader
from specbench.tune.served.draft_size import PLAIN, DraftSize, TunedMethod
from specbench.tune.served.load_choice import MethodResult, choose
from specbench.tune.served.prediction import Blocks, acceptance_by_position, candidates

PASSES = 3
"""Passes of the last measurement, unless the user gives another number."""


class Bench(Protocol):
    """Measures draft sizes on servers."""

    def measure(
        self,
        name: str,
        sizes: Sequence[DraftSize],
        loads: Sequence[int],
        *,
        passes: int = 1,
        is_short: bool = False,
    ) -> Sequence[BlockHeader]:
        """The blocks of sizes at loads, in turns.

        Args:
            name: name of the measurement and of its folder.
            sizes: sizes to measure, with a server for each.
            loads: requests at once.
            passes: passes over the prompts.
            is_short: answers are short, since only the time of a step counts.
        """


def tune_methods(
    bench: Bench, methods: Sequence[TunedMethod], loads: Sequence[int], passes: int
) -> list[MethodResult]:
    """Find the draft size of each method at each load.

    `loads` are requests at once, in rising order. `passes` is the number of passes of the last
    measurement.

    Raises:
        UserError: plain decoding, or every size of a method, gave no answer.
    """
    acceptance_of = _acceptance(bench, methods, loads[-1])
    with_acceptance = [method for method in methods if acceptance_of[method.label]]
    without = [method for method in methods if not acceptance_of[method.label]]
    swept: list[BlockHeader] = []
    if with_acceptance:  # acceptance is known, so only the time of steps is measured
        swept += bench.measure("steps", _sizes(with_acceptance), loads, is_short=True)
    if without:  # acceptance has to be measured with each size
        swept += bench.measure("sizes", _sizes(without), loads)
    swept_blocks = Blocks.of(swept)
    candidates_of = {
        method.label: candidates(method, acceptance_of[method.label], swept_blocks, loads)
        for method in methods
    }
    to_measure = [size for sizes in candidates_of.values() for size in sizes]
    blocks = Blocks.of(bench.measure("turns", [PLAIN, *to_measure], loads, passes=passes))
    return [
        MethodResult(
            method,
            acceptance_of[method.label],
            tuple(choose(candidates_of[method.label], blocks, load) for load in loads),
        )
        for method in methods
    ]


def _acceptance(
    bench: Bench, methods: Sequence[TunedMethod], load: int
) -> dict[str, tuple[float, ...]]:
    """The acceptance by position of each method's largest drafts, at this load.

    Empty if a method's shorter drafts are not the beginnings of its longer ones, or if its server
    does not count accepted tokens by position.
    """
    chains = [method for method in methods if method.is_chain]
    blocks = Blocks()
    if chains:
        largest = [method.largest for method in chains]
        blocks = Blocks.of(bench.measure("acceptance", largest, [load]))
    return {
        method.label: (
            acceptance_by_position(blocks.at(method.largest, load)) if method.is_chain else ()
        )
        for method in methods
    }


def _sizes(methods: Sequence[TunedMethod]) -> list[DraftSize]:
    """All sizes of methods."""
    return [size for method in methods for size in method.sizes]
