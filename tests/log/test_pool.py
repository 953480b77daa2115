"""Pools of runs: each run is a unit of repetition."""

from pathlib import Path

import numpy as np
import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Estimate
from specbench.errors import RunFolderError, UserError
from specbench.judge.comparison import compare
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_runs
from tests.analysis.run_factory import full_run, make_run
from tests.judge.changing import several, slower, with_header

RUN = full_run(methods=("vanilla", "pld"), num_samples=6)


def test_the_spread_between_runs_is_in_the_interval() -> None:
    steady, noisy = (
        measure(several(RUN, 5, sd=sd)).overall["pld", 0.0].speedup for sd in (0.001, 0.1)
    )
    assert isinstance(steady, Estimate) and isinstance(noisy, Estimate)
    assert steady.interval and noisy.interval
    assert noisy.interval.half_width > 1.5 * steady.interval.half_width
    assert noisy.machine is not None
    assert noisy.machine.value == pytest.approx(2 * 0.1**2 / 5, rel=1.0)


def test_a_pool_is_labelled_by_its_runs() -> None:
    pooled = several(RUN, 5)
    assert measure(pooled).scope.text == "prompts and 5 runs"
    assert pooled.header.id.endswith("and 4 more")
    assert pooled.header.spec.values.repeats == 5
    assert len(pooled.records) == 5 * len(RUN.records)


def test_runs_with_passes_are_units_as_a_whole() -> None:
    passes = several(RUN, 3, sd=0.05)
    run = make_run(passes.records, passes.header)
    both = Run.pooled([run, slower(run, {"pld": 1.1})])
    assert both.run_of_repeat == (0, 0, 0, 1, 1, 1)
    speedup = measure(both).overall["pld", 0.0].speedup
    assert isinstance(speedup, Estimate)
    assert np.diff(speedup.units[0]) == pytest.approx(-np.log(1.1), abs=1e-9)


def test_what_is_no_repetition_is_not_pooled() -> None:
    with pytest.raises(UserError, match="pooled with itself"):
        Run.pooled([RUN, RUN])
    other = slower(RUN, {"pld": 1.1})
    with pytest.raises(UserError, match="machine: Example"):
        Run.pooled([RUN, with_header(other, environment__cpu__model="Small CPU")])
    with pytest.raises(UserError, match="--method: vanilla,pld"):
        Run.pooled([RUN, with_header(other, spec__values__methods=["vanilla", "sps"])])
    with pytest.raises(UserError, match="--max-new-tokens"):
        Run.pooled([RUN, with_header(other, spec__values__max_new_tokens=7)])


def test_a_folder_of_runs_is_read_as_one_pool(tmp_path: Path) -> None:
    for number, factor in enumerate((1.0, 1.02, 0.97)):
        run = slower(RUN, {"pld": factor})
        with RunFolder(tmp_path / "mine" / f"run-{number}") as folder:
            folder.write_header(run.header)
            for record in run.records:
                folder.append(record)
    pooled = read_runs(tmp_path / "mine")
    assert pooled.header.id == "mine"
    assert measure(pooled).scope.number == 3
    assert measure(read_runs(tmp_path / "mine" / "run-0")).scope.number == 1
    with pytest.raises(RunFolderError, match="There is no run"):
        read_runs(tmp_path)


def test_runs_that_only_one_side_has_are_named() -> None:
    compared = compare(several(RUN, 4), several(with_header(RUN, id="new"), 3, seed=1))
    assert "runs after the first 3, which only one side has" in compared.unshared
    assert compared.repetition.scope.number == 3
