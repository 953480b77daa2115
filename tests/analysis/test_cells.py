"""The numbers of one cell, compared with numbers computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from specbench.analysis.cells import (
    ALL_FAILED,
    BASELINE_FAILED,
    NO_BASELINE,
    NO_SHARED,
    NO_STEPS,
    NOT_GREEDY,
    NOT_RUN,
    WITH_PHASES,
    CellMetrics,
)
from specbench.analysis.latency import percentiles
from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.types import Phases, Record
from tests.analysis.run_factory import (
    failed,
    full_run,
    header,
    make_run,
    number,
    record,
)
from tests.judge.changing import with_header


def cell(*records: Record) -> CellMetrics:
    """The numbers of PLD's cell in a run of these records of GSM8K, at one temperature."""
    run = make_run(records, header(["vanilla", "pld"], ["gsm8k"], ()))
    metrics = measure(run, Bootstrap(1))
    return metrics.cell("pld", metrics.temperatures[0], "gsm8k")


def test_different_token_counts_are_compared_per_token() -> None:
    ten_tokens = record(decode_s=2.0, accept_lengths=[1] * 9)  # 0.2 s each
    more_tokens = record("pld", decode_s=2.0, accept_lengths=[2] * 12)  # 25 tokens, 0.08 s each
    assert number(cell(more_tokens, ten_tokens).speedup) == pytest.approx(0.2 / 0.08)


def test_mat_is_over_all_steps_and_macro_over_completions() -> None:
    one_step = record("pld", "a", accept_lengths=[4])
    three_steps = record("pld", "b", accept_lengths=[1, 1, 2])
    measured = cell(one_step, three_steps)
    assert number(measured.mat) == pytest.approx(8 / 4)
    assert number(measured.mat_macro) == pytest.approx((4 + 4 / 3) / 2)
    assert measured.accept_histogram == {1: 2, 2: 1, 4: 1}
    assert measured.num_steps == 4
    assert measured.num_tokens == 10


def test_the_match_rate_is_the_share_of_identical_token_ids() -> None:
    baseline = [record(sample=name, token_ids=[1, 2, 3, 4]) for name in "abcd"]
    equal = [record("pld", name, token_ids=[1, 2, 3, 4]) for name in "abc"]
    different = record("pld", "d", token_ids=[1, 2, 3, 5])
    greedy = cell(*baseline, *equal, different)
    assert number(greedy.match_rate) == 0.75
    sampled = cell(record("pld", temperature=1.0), record(temperature=1.0))
    assert sampled.match_rate == NOT_GREEDY


def test_a_missing_number_has_a_reason() -> None:
    baseline = record()
    drafted = record("pld")
    assert cell(baseline).speedup == NOT_RUN
    assert cell(baseline).mat == NOT_RUN
    assert cell(baseline, failed("pld")).mat == ALL_FAILED
    assert cell(drafted).speedup == NO_BASELINE
    assert cell(drafted).match_rate == NO_BASELINE
    assert cell(drafted, failed("vanilla")).speedup == BASELINE_FAILED
    assert cell(drafted, record(sample="z")).speedup == NO_SHARED


def test_a_completion_of_one_token_has_a_speedup() -> None:
    baseline = record(prefill_s=2.0, decode_s=0.0, accept_lengths=[])
    drafted = record("pld", prefill_s=1.0, decode_s=0.0, accept_lengths=[])
    measured = cell(baseline, drafted)
    assert number(measured.speedup) == pytest.approx(2.0)
    assert measured.decode_speedup == NO_STEPS
    assert measured.mat == NO_STEPS
    assert measured.latency.first_token.num == 1
    assert measured.latency.per_token.p50 == Missing("no completion")


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf")])
def test_a_record_without_a_time_counts_as_failed(seconds: float) -> None:
    measured = cell(record("pld", decode_s=seconds), record())
    assert measured.num_failed == 1
    assert measured.speedup == ALL_FAILED


@pytest.mark.parametrize(("num_times", "num_given"), [(9, 1), (10, 2), (100, 3)])
def test_a_percentile_needs_a_completion_beyond_it(num_times: int, num_given: int) -> None:
    times = percentiles(np.arange(1.0, num_times + 1))
    in_order = (times.p50, times.p90, times.p99)
    for position, percentile in enumerate(in_order):
        assert isinstance(percentile, Estimate) is (position < num_given)


def test_a_run_with_phases_has_acceptance_but_no_speed() -> None:
    vanilla = record(decode_s=4.0)
    drafted = record("pld", decode_s=2.0, accept_lengths=[2, 1])
    plain = make_run(
        [vanilla, drafted],
        header(["vanilla", "pld"], ("gsm8k",)),
    )
    timed = replace(
        drafted,
        phases=Phases(1.0, 1.0, 0.0, 0.0),
    )
    for run in (
        with_header(plain, spec__values__phases=True),
        make_run([vanilla, timed], header(["pld"])),
    ):
        metrics = measure(run).cell("pld", 0.0, "gsm8k")
        latency = metrics.latency
        assert metrics.speedup == metrics.decode_speedup == metrics.tokens_per_s == WITH_PHASES
        assert latency.first_token.p50 == latency.per_token.p50 == WITH_PHASES
        assert metrics.mat == Estimate(1.5)


def steps(lengths: list[int], num_nodes: int = 99, sample: str = "a") -> Record:
    """A completion with these steps."""
    stepped = record("pld", sample, accept_lengths=lengths)
    return replace(stepped, num_nodes=(num_nodes,) * len(lengths))


@pytest.mark.parametrize(
    ("lengths", "num_nodes", "depths"),
    [
        # A step that emits n tokens accepted a draft token at each depth below n, and none at depth
        # n. The last of these five steps accepted its whole chain of three draft tokens.
        ([1, 2, 4, 2, 4], 4, [(1, 5, 4), (2, 4, 2), (3, 2, 2)]),
        # The last step was cut: its only token may be an accepted draft token or the target's own.
        ([3, 1], 99, [(1, 1, 1), (2, 1, 1)]),
        # The last step's first token was a draft token. Its second may be either.
        ([3, 2], 99, [(1, 2, 2), (2, 1, 1)]),
        # A last step without a draft accepted none.
        ([3, 1], 1, [(1, 2, 1), (2, 1, 1)]),
    ],
)
def test_the_end_of_a_completion_is_not_a_rejection(
    lengths: list[int],
    num_nodes: int,
    depths: list[tuple[int, int, int]],
) -> None:
    by_depth = cell(steps(lengths, num_nodes)).acceptance_by_depth
    counts = [(depth.depth, depth.num_reached, depth.num_accepted) for depth in by_depth]
    assert counts == depths
    assert [depth.conditional.value for depth in by_depth] == [
        num_accepted / num_reached for _, num_reached, num_accepted in depths
    ]


def test_unconditional_shares_and_one_add_up_to_mat() -> None:
    metrics = cell(steps([1, 3, 2, 5, 1, 5], num_nodes=5), steps([2, 2, 5], 5, "b"))
    shares = [depth.unconditional.value for depth in metrics.acceptance_by_depth]
    total = 1 + sum(shares)
    assert total == pytest.approx(metrics.mat.value)  # type: ignore[union-attr]


def test_cut_steps_do_not_bias_the_shares() -> None:
    """Draft tokens are accepted with probability 0.7, and a short budget cuts the last step."""
    generator = np.random.default_rng(4)
    records = []
    for sample in range(4000):
        lengths: list[int] = []
        while (room := 9 - sum(lengths)) > 0:
            accepted = int(np.minimum(generator.geometric(0.3) - 1, 3))
            lengths.append(min(room, accepted + 1))
        records.append(steps(lengths, sample=str(sample)))
    shares = [depth.conditional.value for depth in cell(*records).acceptance_by_depth]
    assert shares == pytest.approx([0.7, 0.7, 0.7], abs=0.015)


def test_intervals_of_shares_stay_between_0_and_1() -> None:
    by_depth = measure(full_run(num_samples=12)).cell("pld", 0.0, "gsm8k").acceptance_by_depth
    assert by_depth
    for depth in by_depth:
        for share in (depth.conditional, depth.unconditional):
            assert share.interval is not None
            assert 0 <= share.interval.low <= share.value <= share.interval.high <= 1
