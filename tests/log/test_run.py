"""Parts of a run: its records at one load, and categories as tasks.

In a pool of runs, each run is a unit of repetition.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate
from specbench.errors import UserError
from specbench.judge.comparison import MEAN
from specbench.log.folders import read_runs
from specbench.log.run import ONE_AT_A_TIME, Load, Run
from specbench.report.notes import notes
from specbench.types import Record
from tests.analysis.run_factory import estimate, full_run, interval, make_run, number
from tests.judge.changing import at_loads, several, slower, with_header, with_records
from tests.judge.comparing import compare
from tests.support.audits import stored_audit
from tests.support.records import store

RUN = full_run(("vanilla", "pld"), ("gsm8k",), num_samples=2)


def served() -> Run:
    run = at_loads(RUN, {1: {}, 4: {}})
    header = structs.replace(run.header, warnings=("busy",), num_records=len(run.records) + 3)
    return replace(run, header=header, left_out=("line 3",), num_repeated=2, audit=stored_audit())


def test_the_first_load_has_the_facts_about_the_whole_run() -> None:
    run = served()
    assert run.loads == (Load(1), Load(4))
    at_1, at_4 = (run.at(load) for load in run.loads)
    for load, part in zip(run.loads, (at_1, at_4), strict=True):
        assert part.loads == (load,)
        assert len(part.records) == len(RUN.records)
        assert part.audit == run.audit
    missing = f"3 of {len(RUN.records) + 3} records are missing"
    assert at_1.header.warnings == ("busy",)
    assert at_1.left_out == ("line 3",)
    assert at_1.num_repeated == 2
    assert at_1.missing_text == missing
    assert at_4.header.warnings == ()
    assert at_4.left_out == ()
    assert at_4.num_repeated == 0
    assert at_4.missing_text == ""
    sentences = [
        note.text
        for part in (at_1, at_4)
        for note in notes([measure(part, Bootstrap(50))], ["run"])
    ]
    about_missing = [sentence for sentence in sentences if "missing" in sentence]
    assert about_missing == [f"The run is marked as complete, but {missing}."]


def test_an_unmeasured_load_has_no_records() -> None:
    assert RUN.loads == (ONE_AT_A_TIME,)
    assert RUN.at(ONE_AT_A_TIME) is RUN
    unmeasured = served().at(Load(9))
    assert unmeasured.records == ()
    assert unmeasured.loads == (Load(9),)
    assert unmeasured.header.warnings == ()


POOLED = full_run(methods=("vanilla", "pld"), num_samples=6)


def test_the_spread_between_runs_is_in_the_interval() -> None:
    num_runs = 5

    def speedup(sd: float) -> Estimate:
        pool = several(POOLED, num_runs, sd=sd)
        return estimate(measure(pool).overall["pld", 0.0].speedup)

    steady, noisy = speedup(0.001), speedup(0.1)
    assert interval(noisy).half_width > 1.5 * interval(steady).half_width
    assert noisy.machine is not None
    # Vanilla and the method vary, each with variance sd^2.
    assert noisy.machine.value == pytest.approx(2 * 0.1**2 / num_runs, rel=1.0)


def test_a_pool_is_labelled_by_its_runs() -> None:
    pooled = several(POOLED, 5)
    assert measure(pooled).scope.text == "prompts and 5 runs"
    assert pooled.header.id.endswith("and 4 more")
    assert pooled.header.spec.values.repeats == 5
    assert len(pooled.records) == 5 * len(POOLED.records)


def test_a_run_with_passes_is_one_unit() -> None:
    passes = several(POOLED, 3, sd=0.05)
    run = make_run(passes.records, passes.header)
    both = Run.pooled([run, slower(run, {"pld": 1.1})])
    assert both.run_of_repeat == (0, 0, 0, 1, 1, 1)
    speedup = estimate(measure(both).overall["pld", 0.0].speedup)
    assert np.diff(speedup.units[0]) == pytest.approx(-np.log(1.1), abs=1e-9)


def test_runs_that_are_not_repetitions_are_not_pooled() -> None:
    with pytest.raises(UserError, match="pooled with itself"):
        Run.pooled([POOLED, POOLED])
    elsewhere = with_header(slower(POOLED, {"pld": 1.1}), environment__cpu__model="Small CPU")
    with pytest.raises(UserError, match="machine: Example"):
        Run.pooled([POOLED, elsewhere])


def test_a_folder_of_runs_is_read_as_one_pool(tmp_path: Path) -> None:
    for run_number, factor in enumerate((1.0, 1.02, 0.97)):
        run = slower(POOLED, {"pld": factor})
        store(tmp_path / "mine" / f"run-{run_number}", run.header, run.records)
    pooled = read_runs(tmp_path / "mine")
    assert pooled.header.id == "mine"
    assert measure(pooled).scope.number == 3
    assert measure(read_runs(tmp_path / "mine" / "run-0")).scope.number == 1


def test_runs_that_only_one_side_has_are_named() -> None:
    four_runs = several(POOLED, 4)
    three_runs = several(with_header(POOLED, id="new"), 3, seed=1)
    compared = compare(four_runs, three_runs)
    assert "runs after the first 3, which only one side has" in compared.unshared
    assert compared.repetition.scope.number == 3


def test_pools_are_paired_run_by_run_and_pass_by_pass() -> None:
    def growing(record: Record) -> Record:
        """The record, slowed so that each pass takes twice as long as the previous one."""
        factor = 2.0**record.key.repeat
        prefill_s, decode_s = record.prefill_s or 0, record.decode_s or 0
        return replace(record, prefill_s=factor * prefill_s, decode_s=factor * decode_s)

    three_passes = with_records(several(POOLED, 3), growing)
    two_passes = with_records(several(POOLED, 2), growing)
    compared = compare(several(three_passes, 2), several(two_passes, 2))
    assert compared.unshared == ("passes after the first 2, which only one side has",)
    ratio = compared.cell("pld", 0.0, MEAN).tokens_per_s.ratio
    assert number(ratio) == pytest.approx(1, abs=0.02)
