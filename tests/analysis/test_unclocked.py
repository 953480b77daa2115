"""Time that methods hide from their own clock, and bursts of other programs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specbench.analysis.cheats import find_cheats
from specbench.analysis.records import make_table
from specbench.analysis.tables import tabled
from specbench.analysis.unclocked import BUILD_S, hidden_time
from specbench.judge.sources import check_sources_alone
from specbench.log.run import Run
from specbench.types import Record
from tests.analysis.run_factory import header, make_run, record

HIDING = 0.3
"""Seconds that the outer clock sees beyond the completion's own second."""


def answers(method: str, num: int, num_longer: int) -> list[Record]:
    """Answers that took a second. By the outer clock, the first `num_longer` took longer."""
    return [
        replace(
            record(method, str(number), decode_s=1.0),
            outer_s=1.0 + (HIDING if number < num_longer else 0.0005),
        )
        for number in range(num)
    ]


def named(*records: Sequence[Record]) -> set[str]:
    table = make_table([answer for group in records for answer in group])
    return {method for method, _ in hidden_time(table)}


def test_a_method_that_hides_time_in_all_answers_is_named() -> None:
    vanilla = answers("vanilla", 12, 0)
    assert named(vanilla, answers("pld", 12, 12)) == {"pld"}
    assert named(vanilla, answers("pld", 12, 9), answers("sps", 12, 0)) == {"pld"}


@pytest.mark.parametrize("num_longer", [4, 8, 12])
def test_bursts_of_another_program_name_no_method(num_longer: int) -> None:
    """On a busy machine, 4 of 12 one-token answers lost 33 to 53 ms between the two clocks."""
    assert (
        named(*(answers(method, 12, num_longer) for method in ("vanilla", "pld", "sps"))) == set()
    )
    assert named(answers("vanilla", 12, num_longer), answers("pld", 12, 0)) == set()


def test_a_few_more_than_vanilla_may_be_chance() -> None:
    assert named(answers("vanilla", 12, 1), answers("pld", 12, 4)) == set()


def run_with_build(build_s: float, **more: float) -> Run:
    """A run with a method that is 1.5 times as fast as vanilla and takes `build_s` to build.

    `more` has other untimed work.
    """
    records = [
        answer
        for number in range(10)
        for answer in (
            record("vanilla", str(number), decode_s=1.5),
            record("pld", str(number), decode_s=1.0, accept_lengths=(3,)),
        )
    ]
    hooks = {"pld": {"build_s": build_s, **more}}
    return make_run(records, header(("vanilla", "pld"), ("gsm8k",), hooks=hooks))


def untimed(build_s: float, **more: float) -> dict[str, float]:
    """The method's numbers in the warning, empty if there is no warning."""
    run = run_with_build(build_s, **more)
    for warning in find_cheats(make_table(run.records), run.header):
        if warning.key == "untimed_work":
            numbers: dict[str, float] = warning.numbers["methods"][0]
            return numbers
    return {}


def test_untimed_work_is_reported_with_a_corrected_speedup() -> None:
    assert untimed(0.7) == {}
    two_seconds = untimed(BUILD_S + 2.0)
    assert two_seconds["timed"] == pytest.approx(1.5)
    assert two_seconds["counted"] == pytest.approx(15 / 12)
    assert untimed(BUILD_S + 6.0)["counted"] == pytest.approx(15 / 16)


@pytest.mark.parametrize(("build_s", "status"), [(2.0, "skipped"), (6.0, "failed")])
def test_untimed_work_fails_the_check_if_it_undoes_the_speedup(build_s: float, status: str) -> None:
    (check,) = check_sources_alone(tabled(run_with_build(BUILD_S + build_s)))
    assert check.status == status
    assert "if this work counts" in check.text


@pytest.mark.parametrize("num_runs", [1, 2])
def test_a_method_may_be_used_for_the_first_time_in_each_run(num_runs: int) -> None:
    """1.4 s exceed FIRST_USE_S by 0.9 s in one run, and by 0.4 s in two."""
    assert bool(untimed(0.0, untimed_s=1.4, num_runs=num_runs)) is (num_runs == 1)


def test_nothing_is_named_without_vanilla() -> None:
    assert named(answers("pld", 12, 12)) == set()
