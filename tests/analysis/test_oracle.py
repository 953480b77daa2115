"""A drafter with known acceptance runs through the whole engine; every metric must match."""

from collections.abc import Sequence
from itertools import cycle

import pytest

from specbench.analysis.metrics import RunMetrics, measure
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.types import Completion, Record, RecordKey, Request
from tests.analysis.run_factory import header, interval, make_run, number
from tests.support.models import VOCAB, random_target

NUM_GUESSES = 3
BUDGET = 24
PATTERN = (2, 0, 3, 1)
PREFILL_S = 0.500003
PLAIN_STEP_S = 0.100007
ORACLE_STEP_S = 0.125001
PROMPTS = [(5, 6, 7 + i, 8, 9 + i) for i in range(6)]


class FakeClock:
    """A clock that advances as it is told. Each prefill takes half a second."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._reads = 0

    def now(self) -> float:
        self._reads += 1
        if self._reads % 4 == 2:  # began, prefilled, drafter prefilled, ended
            self.seconds += PREFILL_S
        return self.seconds


class Oracle(Drafter):
    """A drafter that knows the answer.

    It proposes the number of right tokens that the pattern gives, then wrong ones.
    """

    def __init__(self, answer: Sequence[int], clock: FakeClock) -> None:
        self._answer = answer
        self._clock = clock
        self._pattern = cycle(PATTERN)

    def propose(self, state: State) -> DraftTree:
        self._clock.seconds += ORACLE_STEP_S
        done = len(state.token_ids) - len(state.request.prompt_ids)
        num_right = next(self._pattern)
        right = self._answer[done : done + num_right]
        wrong = (self._answer[done + num_right] + 1) % VOCAB
        return state.chain([*right, *[wrong] * (NUM_GUESSES - num_right)])


class Plain(Drafter):
    """Vanilla, with a fixed time per step."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def propose(self, state: State) -> DraftTree:
        self._clock.seconds += PLAIN_STEP_S
        return state.chain()

    def start(self, state: State, prefill: Forward) -> None: ...


def as_record(method: str, number: int, done: Completion) -> Record:
    return Record(
        RecordKey(method, 0.0, "gsm8k", f"gsm8k/{number}", 0, 0),
        status="ok",
        prompt_tokens=5,
        token_ids=done.token_ids,
        stop_reason=done.stop_reason,
        prefill_s=done.prefill_s,
        decode_s=done.decode_s,
        accept_lengths=done.accept_lengths,
        num_nodes=done.num_nodes,
    )


@pytest.fixture(scope="module")
def run() -> RunMetrics:
    target = random_target(layers=2)
    records = []
    for index, prompt in enumerate(PROMPTS):
        clock = FakeClock()
        plain = decode(target, Plain(clock), Request(prompt, BUDGET), clock)
        longer = decode(target, Plain(clock), Request(prompt, BUDGET + NUM_GUESSES + 1))
        clock = FakeClock()
        oracle = Oracle(longer.token_ids, clock)
        drafted = decode(target, oracle, Request(prompt, BUDGET), clock)
        assert drafted.token_ids == plain.token_ids
        records += [as_record("vanilla", index, plain), as_record("sps", index, drafted)]
    return measure(make_run(records, header(["vanilla", "sps"], ("gsm8k",))))


LENGTHS = (3, 1, 4, 2, 3, 1, 4, 2, 3)
"""The tokens of each step: those of the pattern and one more. The budget cuts off the last step."""


def test_accepted_tokens_are_the_oracles(run: RunMetrics) -> None:
    cell = run.cell("sps", 0.0, "gsm8k")
    assert sum(LENGTHS) == BUDGET - 1
    assert number(cell.mat) == pytest.approx(23 / 9)
    assert number(cell.mat_macro) == number(cell.mat)
    assert cell.accept_histogram == {1: 6 * 2, 2: 6 * 2, 3: 6 * 3, 4: 6 * 2}
    assert cell.num_tokens == 6 * BUDGET
    assert cell.num_steps == 6 * len(LENGTHS)
    # The third token of the last step may have been a draft token or not.
    depths = [(at.num_reached, at.num_accepted) for at in cell.acceptance_by_depth]
    assert depths == [(6 * 9, 6 * 7), (6 * 7, 6 * 5), (6 * 4, 6 * 2)]


def test_speedups_and_latency_are_those_of_the_clock(run: RunMetrics) -> None:
    cell = run.cell("sps", 0.0, "gsm8k")
    plain_s = PLAIN_STEP_S * (BUDGET - 1)
    oracle_s = ORACLE_STEP_S * len(LENGTHS)
    assert number(cell.decode_speedup) == pytest.approx(plain_s / oracle_s)
    wall = (PREFILL_S + plain_s) / (PREFILL_S + oracle_s)
    assert number(cell.speedup) == pytest.approx(wall)
    assert number(cell.paper_speedup) == pytest.approx(wall)  # all samples are equally long
    assert number(cell.tokens_per_s) == pytest.approx(BUDGET / (PREFILL_S + oracle_s))
    assert interval(cell.speedup).half_width == pytest.approx(0, abs=1e-9)
    latency = run.cell("vanilla", 0.0, "gsm8k").latency
    assert number(latency.first_token.p50) == pytest.approx(PREFILL_S)
    assert number(latency.per_token.p50) == pytest.approx(PLAIN_STEP_S)


def test_the_oracle_agrees_with_vanilla_without_a_warning(run: RunMetrics) -> None:
    agreement = run.agreements["sps"]
    assert agreement.num_compared == 6
    assert agreement.num_identical == 6
    assert number(run.cell("sps", 0.0, "gsm8k").match_rate) == 1.0
    assert run.warnings == ()
