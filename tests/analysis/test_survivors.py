"""Methods are compared on what every one of them finished."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Missing
from specbench.log.run import Run
from specbench.report.texts import note
from specbench.types import Record
from tests.analysis.run_factory import header, make_run, number, record
from tests.judge.changing import broken


def run(num_failed: int) -> Run:
    """EAGLE and PLD are equally fast, at speedups from 0.5 to 2; EAGLE fails on its worst."""
    records: list[Record] = []
    for i in range(16):
        speed = 0.5 + i / 10
        own = record("eagle", str(i), decode_s=1 / speed)
        records += [
            record("vanilla", str(i)),
            record("pld", str(i), decode_s=1 / speed),
            broken(own) if i < num_failed else own,
        ]
    return make_run(records, header(["vanilla", "pld", "eagle"], ("gsm8k",)))


def test_failing_on_the_worst_prompts_moves_no_method_ahead() -> None:
    metrics = measure(run(num_failed=4))
    pld, eagle = (metrics.overall[method, 0.0].speedup for method in ("pld", "eagle"))
    assert number(eagle) == pytest.approx(number(pld))
    assert number(eagle) > number(measure(run(0)).overall["pld", 0.0].speedup)
    (warning,) = [one for one in metrics.warnings if one.key == "survived"]
    assert warning.numbers == {"shared": 12, "requests": 16}
    assert "12 of 16" in note(warning.key, metrics.info, **warning.numbers).text


def test_a_request_with_a_pause_is_left_out_for_all_methods() -> None:
    whole = run(0)
    slow = replace(record("pld", "3", decode_s=1e6), is_paused=True)
    records = [slow if one.key == slow.key else one for one in whole.records]
    paused = measure(make_run(records, whole.header))
    rest = [one for one in whole.records if one.key.sample_id != slow.key.sample_id]
    without = measure(make_run(rest, whole.header))
    for method in ("pld", "eagle"):
        assert paused.overall[method, 0.0].speedup == without.overall[method, 0.0].speedup
    (warning,) = [one for one in paused.warnings if one.key == "pauses"]
    assert warning.numbers == {"paused": 1, "requests": 16}
    assert all(one.key != "survived" for one in paused.warnings)


def test_the_counts_are_of_all_completions() -> None:
    cell = measure(run(num_failed=4)).cell("pld", 0.0, "gsm8k")
    assert (cell.num_done, cell.num_samples) == (16, 12)
    assert measure(run(num_failed=4)).cell("eagle", 0.0, "gsm8k").num_failed == 4


def test_a_method_that_fails_on_most_prompts_is_not_compared() -> None:
    metrics = measure(run(num_failed=9))
    eagle = metrics.cell("eagle", 0.0, "gsm8k")
    assert eagle.speedup == Missing("not comparable: finished 7 of 16")
    assert metrics.cell("pld", 0.0, "gsm8k").num_samples == 16
    assert "eagle" not in metrics.rankings[0.0].methods


def test_a_method_that_fails_everything_takes_no_sample_from_the_others() -> None:
    metrics = measure(run(num_failed=16))
    assert metrics.cell("eagle", 0.0, "gsm8k").speedup == Missing("all failed")
    assert metrics.cell("pld", 0.0, "gsm8k").num_samples == 16


def test_a_sample_that_is_not_finished_by_all_yet_does_not_count_yet() -> None:
    def started() -> Iterable[Record]:
        yield from run(0).records
        yield replace(record("vanilla", "new"))

    metrics = measure(make_run([*started()], run(0).header))
    assert metrics.cell("pld", 0.0, "gsm8k").num_samples == 16
    assert metrics.cell("vanilla", 0.0, "gsm8k").num_samples == 16
