"""Passes that end by the width of intervals, and the spread that earlier runs stored."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Estimate
from specbench.log.header import RunHeader
from specbench.log.store import RunFolder
from specbench.measure.passes import finished_header, stored_spread, until_width
from specbench.types import Record
from tests.analysis.run_factory import FakeRun, full_run
from tests.judge.changing import several

RUN = full_run(methods=("vanilla", "pld"), num_samples=8)
SPREAD = 0.03


def passes(number: int, *, sd: float = SPREAD, seed: int = 0) -> FakeRun:
    """One run of several passes, between which methods differ by this spread."""
    pooled = several(RUN, number, sd=sd, seed=seed)
    return FakeRun(pooled.records, pooled.header)


def stored(path: Path, run: FakeRun) -> None:
    with RunFolder(path) as folder:
        folder.write_header(run.header)
        for record in run.records:
            folder.append(record)


def until(width: float | None, run: FakeRun) -> RunHeader:
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


def test_two_passes_are_never_enough() -> None:
    run = passes(2, sd=0.0001)
    assert not until_width(until(0.99, run))(run.records)


def test_the_header_of_a_run_that_ended_early_has_the_passes_it_took(tmp_path: Path) -> None:
    run = passes(4)
    ended = finished_header(until(0.5, run), run.records, tmp_path)
    assert (ended.spec.values.repeats, ended.num_records) == (4, len(run.records))


def test_a_run_of_one_pass_takes_the_spread_from_runs_of_the_same_machine(tmp_path: Path) -> None:
    for seed in range(3):
        stored(tmp_path / f"run-{seed}", passes(4, seed=seed))
    found = stored_spread(RUN.header, tmp_path)
    assert found is not None
    assert (found.num_runs, found.degrees) == (3, 9)
    assert found.sd == pytest.approx(2**0.5 * SPREAD, rel=0.5)
    assert finished_header(RUN.header, RUN.records, tmp_path).stored_spread == found
    assert finished_header(passes(2).header, (), tmp_path).stored_spread is None


def test_other_machines_and_single_passes_tell_nothing(tmp_path: Path) -> None:
    stored(tmp_path / "single", RUN)
    cpu = RUN.header.environment.cpu
    environment = structs.replace(
        RUN.header.environment, cpu=structs.replace(cpu, model="Other CPU")
    )
    many = passes(3)
    stored(
        tmp_path / "other",
        replace(many, given=structs.replace(many.header, environment=environment)),
    )
    assert stored_spread(RUN.header, tmp_path) is None


def test_records_are_needed() -> None:
    empty: tuple[Record, ...] = ()
    assert not until_width(until(0.5, RUN))(empty)
