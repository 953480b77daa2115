"""`specbench tune --engine` on simulated servers whose costs and acceptance are known.

    python -m benchmarks.served_tuning [CASES] [DRIFT]

A case is an engine. The cost of its steps, the cost of drafting and the acceptance are drawn at
random. Its blocks take simulated time, each with 5 % of noise. Each start of a server adds a noise
of DRIFT percent (default: 0). The output has a line per case: the number of draft tokens chosen at
each load, the truly best number in parentheses, and the break-even load. Then it counts the cells
(a case at a load) in which the choice is within 3 % of the best, first at measured loads and then
at others. It also shows the smallest speed relative to the best and to plain decoding. Last, it
counts the cases whose true break-even load lies in the interval of the measured one.

A step at a load of n requests, with drafts of K tokens, takes

    host + max(memory, row * n * (K + 1)) + K * (draft + draft_row * n)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from specbench.analysis.break_even import crossing
from specbench.log.backend import BlockHeader
from specbench.measure.server.engine import load_engine
from specbench.registry import MethodChoice
from specbench.tune.served.draft_size import DraftSize, TunedMethod, tuned_methods
from specbench.tune.served.load_choice import MethodResult
from specbench.tune.served.measuring import PASSES, tune_methods
from specbench.tune.served.run_bench import SHORT_TOKENS

LOADS = (1, 4, 16, 64)
"""Requests at once."""
BETWEEN = (2, 8, 32)
"""Loads that are not measured."""
NUM_CASES = 20
NUM_TASKS = 6
"""Blocks that each number of draft tokens gets at each load in one pass."""
NOISE = 0.05
"""Standard deviation of the logarithm of a block's time."""
NUM_ANSWERS = 64
"""Number of answers in a block."""
ANSWER_TOKENS = 128
"""Number of tokens of a whole answer."""
NEAR = 0.97
"""Least share of the best speed that counts as near."""


@dataclass(frozen=True)
class Case:
    """An engine with a method. Times are in seconds."""

    host_s: float
    """Time of the host per step."""
    memory_s: float
    """Time to read the weights."""
    row_s: float
    """Time to compute one row."""
    draft_s: float
    """Time to draft one token for all requests, however many there are."""
    draft_row_s: float
    """Further time per request to draft one token."""
    accepted: tuple[float, ...]
    """At each position, the chance that a draft token is accepted if all before it are."""

    @classmethod
    def drawn(cls, generator: np.random.Generator) -> Case:
        """A case in which speculation may pay everywhere, nowhere, or up to some load."""
        memory_s = 0.02
        rows_at_once = math.exp(generator.uniform(math.log(6), math.log(200)))
        row_s = memory_s / rows_at_once  # more rows than this take longer than reading the weights
        first = generator.uniform(0.35, 0.9)
        fall = generator.uniform(0.85, 1.0)
        return cls(
            host_s=generator.uniform(0.0005, 0.003),
            memory_s=memory_s,
            row_s=row_s,
            draft_s=memory_s * generator.uniform(0.02, 0.25),
            draft_row_s=row_s * generator.uniform(0.02, 0.2),
            accepted=tuple(first * fall**position for position in range(16)),
        )

    def step_s(self, num_tokens: int, load: int) -> float:
        """Seconds of a step of all requests, with drafts of `num_tokens` tokens."""
        rows_s = self.row_s * load * (num_tokens + 1)
        draft_s = num_tokens * (self.draft_s + self.draft_row_s * load)
        return self.host_s + max(self.memory_s, rows_s) + draft_s

    def emitted(self, num_tokens: int) -> float:
        """Mean number of tokens that a step emits for one request."""
        return 1 + float(np.cumprod(self.accepted[:num_tokens]).sum())

    def tokens_per_s(self, num_tokens: int, load: int) -> float:
        """The true speed of all requests together."""
        return load * self.emitted(num_tokens) / self.step_s(num_tokens, load)


@dataclass
class SimulatedBench:
    """Measures blocks of a case in simulated time."""

    case: Case
    generator: np.random.Generator
    drift: float = 0.0
    """Standard deviation of the logarithm of a server's speed, which changes with each start."""

    def measure(
        self,
        name: str,
        sizes: Sequence[DraftSize],
        loads: Sequence[int],
        *,
        passes: int = 1,
        is_short: bool = False,
    ) -> list[BlockHeader]:
        answer_tokens = SHORT_TOKENS if is_short else ANSWER_TOKENS
        blocks = []
        for pass_number in range(passes):
            for size in sizes:
                slowness = math.exp(self.generator.normal(0, self.drift)) if self.drift else 1.0
                for load in loads:
                    for task in range(NUM_TASKS):
                        block = self._block(size, load, f"task {task}", pass_number, answer_tokens)
                        blocks.append(replace(block, duration_s=block.duration_s * slowness))
        return blocks

    def _block(
        self, size: DraftSize, load: int, task: str, pass_number: int, answer_tokens: int
    ) -> BlockHeader:
        """A block of NUM_ANSWERS answers. Acceptance is drawn; the number of steps is its mean."""
        num_tokens = size.num_tokens
        num_steps = round(NUM_ANSWERS * (answer_tokens - 1) / self.case.emitted(num_tokens))
        is_accepted = (
            self.generator.random((num_steps, num_tokens)) < self.case.accepted[:num_tokens]
        )
        accepted_at = np.cumprod(is_accepted, axis=1).sum(0)  # [positions]
        counters = {f"accepted_at_{i + 1}": float(n) for i, n in enumerate(accepted_at)}
        if num_tokens:
            counters["num_drafts"] = float(num_steps)
        noise = math.exp(self.generator.normal(0, NOISE))
        return BlockHeader(
            method=size.label,
            temperature=0.0,
            task=task,
            repeat=pass_number,
            duration_s=num_steps / load * self.case.step_s(num_tokens, load) * noise,
            num_requests=NUM_ANSWERS,
            num_tokens=NUM_ANSWERS + num_steps + int(accepted_at.sum()),
            concurrency=load,
            counters=counters,
        )


@dataclass(frozen=True)
class Outcome:
    """The result of tuning a case, compared with the truth."""

    case: Case
    result: MethodResult

    @property
    def sizes(self) -> list[int]:
        """The numbers of draft tokens that could be chosen. 0 is plain decoding."""
        return [0, *(size.num_tokens for size in self.result.method.sizes)]

    def best(self, load: int) -> int:
        """The truly fastest number of draft tokens."""
        return max(self.sizes, key=lambda num_tokens: self.case.tokens_per_s(num_tokens, load))

    def share_of_best(self, load: int) -> float:
        """True speed with the table's draft tokens at a load / the best true speed."""
        return self._speed(load) / self.case.tokens_per_s(self.best(load), load)

    def share_of_plain(self, load: int) -> float:
        """True speed with the table's draft tokens at a load / the true speed of plain decoding."""
        return self._speed(load) / self.case.tokens_per_s(0, load)

    def _speed(self, load: int) -> float:
        return self.case.tokens_per_s(self.result.table.at(load), load)

    @cached_property
    def true_break_even(self) -> float:
        """The smallest load at which no number of draft tokens is faster than plain decoding.

        Between measured loads, the ratio of speeds is linear in the logarithm of the load.
        """
        ratios = [
            max(self.case.tokens_per_s(num_tokens, load) for num_tokens in self.sizes[1:])
            / self.case.tokens_per_s(0, load)
            for load in LOADS
        ]
        return crossing(LOADS, ratios)

    @property
    def is_break_even_covered(self) -> bool:
        """True if the true break-even load lies in the interval."""
        interval = self.result.break_even.interval
        return interval is not None and self.true_break_even in interval


def tuned_method() -> TunedMethod:
    """A method that drafts chains of up to eight tokens."""
    (method,) = tuned_methods([MethodChoice("eagle3")], load_engine("vllm"))
    return method


def outcomes(num_cases: int, seed: int = 0, drift: float = 0.0) -> Iterator[Outcome]:
    """Tune drawn cases, whose servers drift. The noise of a case does not depend on other cases."""
    generator = np.random.default_rng(seed)
    for number in range(num_cases):
        noise = np.random.default_rng([seed, number])
        bench = SimulatedBench(Case.drawn(generator), noise, drift)
        (result,) = tune_methods(bench, [tuned_method()], LOADS, PASSES)
        yield Outcome(bench.case, result)


def main(num_cases: int = NUM_CASES, drift_percent: int = 0) -> None:
    """Print the outcomes of cases, and their shares."""
    all_outcomes = list(outcomes(num_cases, drift=drift_percent / 100))
    print(f"requests at once: {', '.join(map(str, LOADS))}; K chosen (truly best)")
    for number, outcome in enumerate(all_outcomes, start=1):
        table = outcome.result.table
        cells = [f"{table.at(load)} ({outcome.best(load)})" for load in LOADS]
        break_even = outcome.result.break_even
        interval = break_even.interval
        ends = f"{interval.low:.3g} to {interval.high:.3g}" if interval else "no interval"
        mark = "" if outcome.is_break_even_covered else "  MISSED"
        print(
            f"{number:3}  {'  '.join(cells):34}  break-even {break_even.load:.3g} ({ends}), "
            f"true {outcome.true_break_even:.3g}{mark}"
        )
    for name, loads in (("measured", LOADS), ("other", BETWEEN)):
        of_best = [outcome.share_of_best(load) for outcome in all_outcomes for load in loads]
        of_plain = [outcome.share_of_plain(load) for outcome in all_outcomes for load in loads]
        num_near = sum(share >= NEAR for share in of_best)
        print(
            f"{name} loads: within 3 % of the best in {num_near} of {len(of_best)} cells, at least "
            f"{min(of_best):.3f} of it and {min(of_plain):.3f} of plain decoding"
        )
    num_covered = sum(outcome.is_break_even_covered for outcome in all_outcomes)
    print(f"intervals that cover the true break-even: {num_covered} of {len(all_outcomes)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
