"""Merged runs: more prompts and passes as one run, with each record's origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.errors import UserError
from specbench.log.backend import WorkerHeader
from specbench.log.merge import merged, write_run
from specbench.log.run import Run
from tests.analysis.run_factory import full_run
from tests.judge.changing import slower, with_header, with_records

RUN = full_run(methods=("vanilla", "pld"), tasks=("gsm8k",), num_samples=6)


def stored(run: Run, name: str, **changes: object) -> Run:
    header = with_header(run, id=name, **changes).header
    return Run(header, run.records, Path("/nowhere") / name)


def only(samples: Sequence[int], run: Run = RUN) -> Run:
    ids = {f"gsm8k/{sample}" for sample in samples}
    return with_records(run, lambda one: one if one.key.sample_id in ids else None)


FIRST = stored(only([0, 1, 2]), "first")


def test_other_prompts_are_added_in_the_same_pass() -> None:
    joined = merged([FIRST, stored(only([3, 4]), "second")])
    assert len({record.key for record in joined.records}) == len(joined.records) == 10
    assert {record.key.repeat for record in joined.records} == {0}
    origins = {record.key.sample_id: record.origin for record in joined.records}
    assert origins["gsm8k/2"] == "first" and origins["gsm8k/3"] == "second"
    assert joined.header.num_records == 10
    assert [one.id for one in joined.header.origins] == ["first", "second"]
    assert [one.num_records for one in joined.header.origins] == [6, 4]


def test_the_same_prompts_are_further_passes_and_others_are_not() -> None:
    joined = merged([FIRST, stored(slower(only([2, 3]), {"pld": 1.1}), "second")])
    repeats = {(r.key.sample_id, r.origin): r.key.repeat for r in joined.records}
    assert repeats["gsm8k/2", "first"] == 0 and repeats["gsm8k/2", "second"] == 1
    assert repeats["gsm8k/3", "second"] == 0
    assert joined.header.spec.values.repeats == 2
    metrics = measure(joined, Bootstrap(50))
    assert metrics.pooled("pld", 0.0).num_pairs == 5


def test_workers_of_several_runs_are_told_apart() -> None:
    def on_a_worker(run: Run, name: str, core: str) -> Run:
        one = stored(with_records(run, lambda record: replace(record, worker="worker-1")), name)
        machine = with_header(run, environment__cpu__model=core).header.environment
        about = WorkerHeader(node=core, gpu_ids=(), environment=machine)
        return replace(one, header=structs.replace(one.header, workers={"worker-1": about}))

    joined = merged([on_a_worker(only([0]), "a", "A"), on_a_worker(only([1]), "b", "B")])
    assert {r.worker for r in joined.records} == {*joined.header.workers}
    cores = {name: one.environment.cpu.model for name, one in joined.header.workers.items()}
    assert cores == {"a/worker-1": "A", "b/worker-1": "B"}
    again = merged([joined, stored(only([2]), "d")])
    assert {r.worker for r in again.records} == {"a/worker-1", "b/worker-1", ""}
    assert [*again.header.workers] == ["a/worker-1", "b/worker-1"]


def test_a_merge_of_a_merge_keeps_the_first_origins() -> None:
    inner = merged([FIRST, stored(only([3]), "second")])
    whole = replace(inner, header=with_header(inner, id="inner").header)
    joined = merged([whole, stored(only([4]), "third")])
    assert {record.origin for record in joined.records} == {"first", "second", "third"}
    assert [one.id for one in joined.header.origins] == ["first", "second", "third"]


def test_another_machine_is_merged_and_named() -> None:
    other = stored(only([3]), "second", environment__cpu__model="Small CPU")
    joined = merged([FIRST, other])
    assert any("machine: Example CPU 9000" in text for text in joined.header.warnings)
    assert joined.header.origins[1].environment.cpu.model == "Small CPU"
    assert "Example CPU 9000" in joined.header.machine.device
    assert "Small CPU" in joined.header.machine.device


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"spec__values__max_new_tokens": 7}, "--max-new-tokens: 128 in first, 7 in"),
        ({"status": "running"}, "second is not finished"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, object], difference: str) -> None:
    with pytest.raises(UserError, match="cannot be merged") as refused:
        merged([FIRST, stored(only([3]), "second", **changes)])
    assert difference in refused.value.message


def test_a_run_alone_twice_or_under_the_same_name_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to merge"):
        merged([FIRST])
    with pytest.raises(UserError, match="given twice"):
        merged([FIRST, FIRST])
    with pytest.raises(UserError, match="Two runs are named first"):
        merged([FIRST, stored(only([3]), "first")])


def test_a_full_folder_is_not_written_to(tmp_path: Path) -> None:
    joined = merged([FIRST, stored(only([3]), "second")])
    write_run(joined, tmp_path / "new")
    with pytest.raises(UserError, match="holds a run already"):
        write_run(joined, tmp_path / "new")
