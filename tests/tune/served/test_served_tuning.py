"""The draft size by load on simulated servers whose costs and acceptance are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from benchmarks.served_tuning import BETWEEN, LOADS, NEAR, outcomes
from specbench.analysis.server_counters import rates_by_position
from specbench.errors import UserError
from specbench.log.backend import BlockHeader
from specbench.measure.server.engine import load_engine
from specbench.registry import MethodChoice
from specbench.tune.served.draft_size import PLAIN, DraftSize, TunedMethod, tuned_methods
from specbench.tune.served.load_choice import MethodResult
from specbench.tune.served.measuring import tune_methods
from specbench.tune.served.prediction import Blocks, candidates


def test_drawn_cases_get_nearly_the_best_number_of_draft_tokens() -> None:
    drawn = list(outcomes(6))
    cells = [(outcome, load) for outcome in drawn for load in LOADS]
    num_near = sum(outcome.share_of_best(load) >= NEAR for outcome, load in cells)
    assert num_near >= 0.9 * len(cells)
    all_loads = [(outcome, load) for outcome in drawn for load in (*LOADS, *BETWEEN)]
    assert min(outcome.share_of_plain(load) for outcome, load in all_loads) >= 0.98
    assert sum(outcome.is_break_even_covered for outcome in drawn) >= 5
    chosen = {outcome.result.table.at(load) for outcome, load in cells}
    assert 0 in chosen and len(chosen) > 2, "plain decoding and different numbers are chosen"
    for outcome in drawn:
        table = outcome.result.table
        for choice in outcome.result.choices:
            assert table.at(choice.load) == choice.chosen.size.num_tokens
        assert table.at(LOADS[-1] * 4) == outcome.result.choices[-1].chosen.size.num_tokens


@dataclass
class FixedBench:
    """Blocks with a speed per size and load, relative to plain decoding's 100 tokens/s."""

    ratio: Callable[[DraftSize, int], float]
    spread: float = 0.0
    """Passes alternate between factors of 1 and 1 + spread, and neighbouring sizes are out of
    step."""
    measured: dict[str, list[str]] = field(default_factory=dict)
    """The labels of the measured sizes, by the name of the measurement."""

    def measure(
        self,
        name: str,
        sizes: Sequence[DraftSize],
        loads: Sequence[int],
        *,
        passes: int = 1,
        is_short: bool = False,
    ) -> list[BlockHeader]:
        self.measured[name] = [size.label for size in sizes]
        return [
            BlockHeader(
                method=size.label,
                temperature=0.0,
                task=task,
                repeat=pass_number,
                duration_s=10
                / self.ratio(size, load)
                * (1 + self.spread * ((pass_number + size.num_tokens) % 2)),
                num_requests=8,
                num_tokens=1000,
                concurrency=load,
                counters=self.counters(size),
            )
            for pass_number in range(passes)
            for size in sizes
            for load in loads
            for task in ("a", "b", "c")
        ]

    def counters(self, size: DraftSize) -> dict[str, float]:
        return {}


def chain(most: int = 3) -> TunedMethod:
    asked = MethodChoice("ngram", {"num_tokens": str(most)})
    (method,) = tuned_methods([asked], load_engine("vllm"))
    return method


def tuned(bench: FixedBench, loads: Sequence[int], passes: int = 4) -> MethodResult:
    (result,) = tune_methods(bench, [chain()], loads, passes)
    return result


def test_a_method_that_drafts_blocks_is_measured_at_each_size() -> None:
    bench = FixedBench(lambda size, load: {0: 1.0, 1: 1.2, 2: 1.5, 3: 1.1}[size.num_tokens])
    result = tuned(bench, [1, 4])
    assert [*bench.measured.items()] == [
        ("sizes", [f"ngram:num_tokens={number}" for number in (1, 2, 3)]),
        ("turns", ["vanilla", "ngram:num_tokens=1", "ngram:num_tokens=2"]),
    ]
    assert [choice.chosen.size.num_tokens for choice in result.choices] == [2, 2]
    assert result.choices[0].chosen.ratio.value == pytest.approx(1.5)
    assert math.isinf(result.break_even.load)


@dataclass
class CountingBench(FixedBench):
    """Blocks that count drafts, half of which are accepted at each position."""

    def counters(self, size: DraftSize) -> dict[str, float]:
        counts = {
            "num_drafts": 100.0,
            **{f"accepted_at_{i}": 100.0 / 2**i for i in range(1, size.num_tokens + 1)},
        }
        return counts if size != PLAIN else {}


def test_a_chain_is_predicted_from_the_acceptance_of_its_largest_drafts() -> None:
    (method,) = tuned_methods([MethodChoice("eagle3", {"num_tokens": "3"})], load_engine("vllm"))
    # Steps per second: 10, 9 and 4; emitted per step: 1.5, 1.75 and 1.875.
    bench = CountingBench(lambda size, load: {0: 1.0, 1: 1.0, 2: 0.9, 3: 0.4}[size.num_tokens])
    (result,) = tune_methods(bench, [method], [1, 8], 2)
    assert result.acceptance == (0.5, 0.25, 0.125)
    assert bench.measured["acceptance"] == ["eagle3:num_tokens=3"]
    assert bench.measured["turns"] == ["vanilla", "eagle3:num_tokens=1", "eagle3:num_tokens=2"]


@pytest.mark.parametrize("slow_size", [3, 4])
def test_a_size_that_was_slow_by_chance_is_still_measured(slow_size: int) -> None:
    """A step with K draft tokens takes 1 + K / 4. The fastest sizes are 3 and 4."""
    (method,) = tuned_methods([MethodChoice("eagle3", {"num_tokens": "8"})], load_engine("vllm"))
    blocks = [
        BlockHeader(
            method=size.label,
            temperature=0.0,
            task="a",
            repeat=0,
            duration_s=100
            * (1 + size.num_tokens / 4)
            * (1.2 if size.num_tokens == slow_size else 1),
            num_requests=8,
            num_tokens=100,
            concurrency=1,
            counters={"num_drafts": 100.0},
        )
        for size in method.sizes
    ]
    acceptance = [0.8**position for position in range(1, 9)]
    measured = candidates(method, acceptance, Blocks.of(blocks), [1])
    assert {3, 4} <= {size.num_tokens for size in measured} and len(measured) <= 3


def test_a_server_without_counts_by_position_has_no_acceptance() -> None:
    assert rates_by_position([]) == ()
    bench = FixedBench(lambda size, load: 1.0)
    assert rates_by_position(bench.measure("turns", [PLAIN], [1])) == ()


@pytest.mark.parametrize(
    ("ratios", "spread", "chosen", "is_tie"),
    [
        ({0: 1.0, 1: 1.30, 2: 1.31, 3: 1.2}, 0.04, 1, True),  # less than equal servers differ
        ({0: 1.0, 1: 1.30, 2: 1.31, 3: 1.2}, 0.0001, 2, False),  # more than equal servers differ
        ({0: 1.0, 1: 1.22, 2: 1.31, 3: 1.2}, 0.3, 2, False),  # 1 is over 2 % slower
        ({0: 1.0, 1: 0.99, 2: 1.01, 3: 1.0}, 0.04, 0, True),
        ({0: 1.0, 1: 0.9, 2: 0.8, 3: 0.7}, 0.04, 0, False),
    ],
)
def test_the_smallest_size_is_chosen_if_equal_servers_differ_by_more(
    ratios: dict[int, float], spread: float, chosen: int, is_tie: bool
) -> None:
    (choice,) = tuned(FixedBench(lambda size, load: ratios[size.num_tokens], spread), [1]).choices
    assert choice.chosen.size.num_tokens == chosen
    assert (choice.chosen != choice.fastest) == is_tie


@pytest.mark.parametrize(
    ("token_s", "num_tokens_by_load"),
    [
        # At load 9, both sizes are equally fast by linear interpolation.
        ({1: {1: 2, 17: 12}, 2: {1: 1, 17: 13}}, {1: 2, 8: 2, 10: 1, 17: 1}),
        # At load 9, a token takes 7, 6.25 and 10.5 s with 1, 2 and 3 draft tokens.
        (
            {1: {1: 4.0, 17: 10.0}, 2: {1: 1.5, 17: 11.0}, 3: {1: 1.0, 17: 20.0}},
            {1: 3, 9: 2, 17: 1},
        ),
    ],
    ids=["the faster of two", "a third size"],
)
def test_speeds_between_measured_loads_are_interpolated(
    token_s: dict[int, dict[int, float]], num_tokens_by_load: dict[int, int]
) -> None:
    """`token_s` are the seconds of one request's token, by draft tokens and load."""

    def ratio(size: DraftSize, load: int) -> float:
        if size.num_tokens in token_s:
            return load / token_s[size.num_tokens][load]
        return 0.2

    result = tuned(FixedBench(ratio), [1, 17])
    chosen = [choice.chosen.size.num_tokens for choice in result.choices]
    assert chosen == [num_tokens_by_load[1], num_tokens_by_load[17]]
    assert {load: result.table.at(load) for load in num_tokens_by_load} == num_tokens_by_load


def test_drafts_are_recommended_only_up_to_a_load_at_which_they_paid() -> None:
    def ratio(size: DraftSize, load: int) -> float:
        return 1.0 if size == PLAIN else {1: 1.4, 4: 1.4, 16: 0.6}[load]

    result = tuned(FixedBench(ratio), [1, 4, 16])
    assert result.break_even.load == pytest.approx(8)
    assert result.table.vllm_rows()[0] == (1, 4, 1)
    assert result.table.at(5) == result.table.at(1000) == 0


def test_after_one_pass_the_noise_is_unknown() -> None:
    result = tuned(FixedBench(lambda size, load: 1.0 + size.num_tokens / 10), [1], passes=1)
    assert math.isinf(result.choices[0].noise)


def test_plain_decoding_that_fails_ends_the_tune() -> None:
    class NoPlain(FixedBench):
        def measure(self, *arguments: object, **options: object) -> list[BlockHeader]:
            blocks = super().measure(*arguments, **options)  # type: ignore[arg-type]
            return [block for block in blocks if block.method != "vanilla"]

    with pytest.raises(UserError, match="Plain decoding gave no answer at 4 requests at once"):
        tuned(NoPlain(lambda size, load: 1.0), [4])


def test_sglang_gets_chains_and_trees() -> None:
    asked = MethodChoice("eagle3", {"num_tokens": "2", "weights": "head"})
    (method,) = tuned_methods([asked], load_engine("sglang"))
    assert not method.is_chain
    texts = {size.options_text for size in method.sizes}
    assert {"num_tokens=1", "num_tokens=2"} < texts
    assert "num_tokens=2,eagle_topk=4,num_draft_tokens=16" in texts
    assert "num_tokens=2,eagle_topk=2,num_draft_tokens=8" not in texts, "it drafts six tokens"
    numbers = [size.num_tokens for size in method.sizes]
    assert numbers == sorted(numbers)
    assert {size.method.given["weights"] for size in method.sizes} == {"head"}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (MethodChoice("suffix"), "decides the length of its drafts itself"),
        (MethodChoice("eagle3", {"table": "a.json"}), "finds table itself"),
        (MethodChoice("vanilla"), "No method to tune is named"),
    ],
)
def test_untunable_methods_are_refused(choice: MethodChoice, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tuned_methods([choice], load_engine("vllm"))
