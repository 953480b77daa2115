"""The sentence below a table claims what the intervals bear out, and no more."""

import random

from specbench.analysis.metrics import measure
from specbench.report.verdict import verdict
from tests.analysis.run_factory import FakeRun, header, record


def run(**speeds: float) -> FakeRun:
    """20 samples on which a method has this speed, give or take 5 %."""
    generator = random.Random(3)
    records = [
        record(method, str(i), decode_s=generator.lognormvariate(0, 0.05) / speed)
        for i in range(20)
        for method, speed in {"vanilla": 1.0, **speeds}.items()
    ]
    return FakeRun(records, header(["vanilla", *speeds], ("gsm8k",)))


def said(**speeds: float) -> str:
    return verdict(measure(run(**speeds)), 0.0)


def test_a_clear_winner_is_named_with_its_lead() -> None:
    text = said(pld=1.5, sps=2.0)
    assert text.startswith("SpS is the fastest, at 2.0")
    assert "PLD is next (1.3" in text
    assert "not told apart" not in text


def test_two_that_are_equal_are_not_told_apart() -> None:
    assert "the two are not told apart" in said(pld=1.5, sps=1.51)


def test_a_method_that_is_as_fast_as_vanilla_is_not_told_apart_from_it() -> None:
    assert "not told apart from vanilla" in said(pld=1.005)


def test_methods_that_are_all_slower_than_vanilla_are_called_so() -> None:
    assert said(pld=0.8, sps=0.6).startswith("No method is faster than vanilla; PLD")


def test_vanilla_alone_has_no_speedup_to_report() -> None:
    assert said() == "No speedup to report: only vanilla was run."


def test_without_a_baseline_the_reason_is_said() -> None:
    described = header(["pld"], ("gsm8k",))
    text = verdict(measure(FakeRun([record("pld")], described)), 0.0)
    assert text == "No speedup to report: no baseline."
