"""The measurements of a tune of servers: first acceptance, then steps, then turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specbench.analysis.server_counters import rates_by_position
from specbench.log.backend import BlockHeader
from specbench.tune.served.draft_size import PLAIN, DraftSize, TunedMethod
from specbench.tune.served.load_choice import MethodResult, choose
from specbench.tune.served.prediction import Blocks, candidates

PASSES = 3
"""The number of passes of the last measurement, unless the user gives another."""


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
        """Measure sizes at loads, in turns. Returns the measured blocks.

        Args:
            name: name of the measurement and of its folder.
            sizes: sizes to measure.
            loads: requests at once.
            passes: passes over the prompts.
            is_short: answers are short, since only the time of a step counts.
        """


def tune_methods(
    bench: Bench, methods: Sequence[TunedMethod], loads: Sequence[int], passes: int
) -> list[MethodResult]:
    """Find the best draft size of each method at each load, in three measurements.

    First, the acceptance of the largest drafts is measured at the largest load, for methods whose
    shorter drafts are the beginnings of longer ones. It is valid for all sizes and loads. Then
    every size runs once at every load, so that speeds can be predicted. Last, the sizes that are
    predicted to be fastest run in turns with plain decoding, and the best of all is chosen.

    Args:
        bench: measures draft sizes on servers.
        methods: the methods with the sizes to try.
        loads: requests at once, in rising order.
        passes: passes over the prompts in the last measurement.

    Raises:
        UserError: plain decoding, or every size of a method, has no complete block at a load: one
            whose requests were all answered, without an interruption.
    """
    # by label: shares of accepted drafts by position; empty if they are not valid for all sizes, or
    # could not be counted
    acceptance_of = _acceptance(bench, methods, loads[-1])
    methods_with_acceptance = [method for method in methods if acceptance_of[method.label]]
    other_methods = [method for method in methods if not acceptance_of[method.label]]
    all_sizes_blocks: list[BlockHeader] = []
    if methods_with_acceptance:  # only the time of steps is missing: short answers are enough
        all_sizes_blocks += bench.measure(
            "steps", _sizes(methods_with_acceptance), loads, is_short=True
        )
    if other_methods:  # tokens/s are measured with each size
        all_sizes_blocks += bench.measure("sizes", _sizes(other_methods), loads)
    blocks_to_predict = Blocks.of(all_sizes_blocks)
    candidates_of = {  # by label: the sizes that are predicted to be fastest at some load
        method.label: candidates(method, acceptance_of[method.label], blocks_to_predict, loads)
        for method in methods
    }
    fast_sizes = [size for sizes in candidates_of.values() for size in sizes]
    blocks = Blocks.of(bench.measure("turns", [PLAIN, *fast_sizes], loads, passes=passes))
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
    """Measure the acceptance of each method's largest drafts at a load, by label.

    It is the share of drafts whose first i tokens are all accepted, for i = 1, 2, ... It is empty
    if the method's shorter drafts are not the beginnings of its longer drafts, if the server does
    not count accepted tokens by position, or if no complete block has drafts.
    """
    chains = [method for method in methods if method.is_chain]
    blocks = Blocks()
    if chains:
        largest_sizes = [method.largest for method in chains]
        blocks = Blocks.of(bench.measure("acceptance", largest_sizes, [load]))
    return {
        method.label: (
            rates_by_position(blocks.at(method.largest, load)) if method.is_chain else ()
        )
        for method in methods
    }


def _sizes(methods: Sequence[TunedMethod]) -> list[DraftSize]:
    return [size for method in methods for size in method.sizes]
