"""Passes that end when the intervals are narrow enough."""

import pytest
from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.errors import UserError
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.measure.passes import (
    check_goal,
    finished_header,
    has_interval,
    least_prompts,
    width_after,
)
from specbench.measure.spec import RunSpec
from tests.analysis.run_factory import full_run, interval, make_run, number
from tests.judge.changing import several

RUN = full_run(methods=("vanilla", "pld"), tasks=("gsm8k", "alpaca"))


def passes(number: int, *, sd: float = 0.03) -> Run:
    """One run of several passes. Between passes, methods differ by this spread."""
    pooled = several(RUN, number, sd=sd)
    return make_run(pooled.records, pooled.header)


def until(width: float | None, run: Run) -> RunHeader:
    spec = run.header.spec
    values = structs.replace(spec.values, until_ci=width, repeats=20)
    return structs.replace(run.header, spec=structs.replace(spec, values=values))


def test_passes_end_when_the_intervals_are_narrow_enough() -> None:
    run = passes(4, sd=0.002)
    speedup = measure(run).overall["pld", 0.0].speedup
    width = interval(speedup).half_width / number(speedup)
    enough = width_after(until(width * 1.01, run), run.records)
    assert enough is not None
    assert enough.is_enough
    assert str(enough).endswith(", reached")
    not_yet = width_after(until(width * 0.99, run), run.records)
    assert not_yet is not None
    assert not not_yet.is_enough
    assert str(not_yet).startswith("pass 4: ± ")
    assert width_after(until(None, run), run.records) is None


def test_two_passes_or_no_records_are_never_enough() -> None:
    two_passes = passes(2, sd=0.0001)
    for header, records in (
        (until(0.5, RUN), ()),
        (until(0.99, two_passes), two_passes.records),
    ):
        width = width_after(header, records)
        assert width is not None
        assert not width.is_enough


def test_an_ended_run_reports_a_missed_goal() -> None:
    run = passes(4)
    ended = finished_header(until(0.9, run), run.records)
    assert ended.spec.values.repeats == 4
    assert ended.num_records == len(run.records)
    assert ended.warnings == run.header.warnings
    missed = finished_header(until(0.0001, run), run.records)
    (warning,) = finished_header(missed, run.records).warnings  # a resumed run ends a second time
    assert warning.startswith("The goal of --until-ci was not reached: pass 4: ± ")


@pytest.mark.parametrize("num_tasks", [1, 2, 6])
def test_only_runs_large_enough_for_a_goal_are_accepted(num_tasks: int) -> None:
    least = least_prompts(num_tasks)
    enough = [least] * num_tasks
    too_few = [least - 1] * num_tasks
    assert has_interval(enough)
    assert not has_interval(too_few)
    check_goal(RunSpec(until_ci=0.1, repeats=3), 2, enough)
    with pytest.raises(UserError, match="cannot be reached: too few prompts"):
        check_goal(RunSpec(until_ci=0.1, repeats=None), 2, too_few)
