"""The numbers of one cell, compared with values computed by hand."""

import pytest

from specbench.analysis.cells import (
    ALL_FAILED,
    BASELINE_FAILED,
    NO_BASELINE,
    NO_SHARED,
    NO_STEPS,
    NOT_GREEDY,
    NOT_RUN,
    CellMetrics,
)
from specbench.types import Record
from tests.analysis.run_factory import failed, measured_cell, number, record


def cell(own: list[Record], baseline: list[Record]) -> CellMetrics:
    return measured_cell(*own, *baseline)


def test_different_token_counts_are_compared_per_token() -> None:
    baseline = [record(decode_s=2.0, accept_lengths=[1] * 9)]  # 10 tokens: 0.2 s each
    own = [record("pld", decode_s=2.0, accept_lengths=[2] * 12)]  # 25 tokens: 0.08 s each
    assert number(cell(own, baseline).speedup) == pytest.approx(0.2 / 0.08)


def test_mat_is_over_all_steps_and_macro_over_completions() -> None:
    own = [
        record("pld", "a", accept_lengths=[4]),  # 4 tokens in 1 step
        record("pld", "b", accept_lengths=[1, 1, 2]),  # 4 tokens in 3 steps
    ]
    measured = cell(own, [])
    assert number(measured.mat) == pytest.approx(8 / 4)
    assert number(measured.mat_macro) == pytest.approx((4 + 4 / 3) / 2)
    assert measured.accept_histogram == {1: 2, 2: 1, 4: 1}
    assert measured.num_steps == 4
    assert measured.num_tokens == 10


def test_the_match_rate_is_the_share_of_identical_token_ids() -> None:
    baseline = [record(sample=name, token_ids=[1, 2, 3, 4]) for name in "abcd"]
    own = [record("pld", name, token_ids=[1, 2, 3, 4]) for name in "abc"]
    own.append(record("pld", "d", token_ids=[1, 2, 3, 5]))
    assert number(cell(own, baseline).match_rate) == 0.75
    hot = [record("pld", temperature=1.0)], [record(temperature=1.0)]
    assert cell(*hot).match_rate == NOT_GREEDY


def test_a_missing_number_has_a_reason() -> None:
    baseline, own = [record()], [record("pld")]
    assert cell([], baseline).speedup == NOT_RUN
    assert cell([], baseline).mat == NOT_RUN
    assert cell([failed("pld")], baseline).mat == ALL_FAILED
    assert cell(own, []).speedup == NO_BASELINE
    assert cell(own, []).match_rate == NO_BASELINE
    assert cell(own, [failed("vanilla")]).speedup == BASELINE_FAILED
    assert cell(own, [record(sample="z")]).speedup == NO_SHARED


def test_completions_of_one_token_have_a_speedup_but_no_mat_and_no_decode_speedup() -> None:
    baseline = [record(prefill_s=2.0, decode_s=0.0, accept_lengths=[])]
    measured = cell([record("pld", prefill_s=1.0, decode_s=0.0, accept_lengths=[])], baseline)
    assert number(measured.speedup) == pytest.approx(2.0)
    assert measured.decode_speedup == NO_STEPS
    assert measured.mat == NO_STEPS


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf")])
def test_a_record_without_a_time_counts_as_failed(seconds: float) -> None:
    measured = cell([record("pld", decode_s=seconds)], [record()])
    assert measured.num_failed == 1
    assert measured.speedup == ALL_FAILED
