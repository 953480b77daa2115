"""Passes that end by the width of intervals."""

from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Estimate
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.measure.session import finished_header, until_width
from tests.analysis.run_factory import full_run, make_run
from tests.judge.changing import several

RUN = full_run(methods=("vanilla", "pld"), num_samples=8)
SPREAD = 0.03


def passes(number: int, *, sd: float = SPREAD, seed: int = 0) -> Run:
    """One run of several passes, between which methods differ by this spread."""
    pooled = several(RUN, number, sd=sd, seed=seed)
    return make_run(pooled.records, pooled.header)


def until(width: float | None, run: Run) -> RunHeader:
    spec = run.header.spec
    values = structs.replace(spec.values, until_ci=width, repeats=20)
    return structs.replace(run.header, spec=structs.replace(spec, values=values))


def test_passes_end_when_the_intervals_are_narrow_enough() -> None:
    run = passes(4, sd=0.002)
    speedup = measure(run).overall["pld", 0.0].speedup
    assert isinstance(speedup, Estimate) and speedup.interval is not None
    width = speedup.interval.half_width / speedup.value
    assert until_width(until(width * 1.01, run))(run.records)
    assert not until_width(until(width * 0.99, run))(run.records)
    assert not until_width(until(None, run))(run.records)


def test_two_passes_are_never_enough_and_no_record_is_not() -> None:
    assert not until_width(until(0.5, RUN))(())
    run = passes(2, sd=0.0001)
    assert not until_width(until(0.99, run))(run.records)


def test_the_header_of_a_run_that_ended_early_has_the_passes_it_took() -> None:
    run = passes(4)
    ended = finished_header(until(0.5, run), run.records)
    assert (ended.spec.values.repeats, ended.num_records) == (4, len(run.records))
