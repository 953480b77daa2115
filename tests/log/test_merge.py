"""Merged runs: more prompts and passes as one run, with each record's origin."""

import errno
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.errors import RunFolderError, UserError
from specbench.log.backend import BlockHeader, HookTimes, WorkerHeader
from specbench.log.header import PromptsHeader
from specbench.log.merge import merged, write_run
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_run
from tests.analysis.run_factory import full_run
from tests.judge.changing import at_loads, slower, with_header, with_records
from tests.support.refusals import error_with
from tests.support.texts import assert_in

WHOLE = full_run(methods=("vanilla", "pld"), tasks=("gsm8k",), num_samples=6)
"""A run of all six samples. The other runs are parts of it."""


def stored(run: Run, name: str, **changes: object) -> Run:
    """The run with this id and folder, and with these changes to its header."""
    return replace(with_header(run, id=name, **changes), path=Path("/nowhere") / name)


def with_samples(numbers: Sequence[int]) -> Run:
    """The whole run, reduced to these samples."""
    ids = {f"gsm8k/{number}" for number in numbers}
    return with_records(WHOLE, lambda record: record if record.key.sample_id in ids else None)


def run_of(numbers: Sequence[int], name: str, **changes: object) -> Run:
    """A stored run of the samples with these numbers."""
    return stored(with_samples(numbers), name, **changes)


def origin_ids(run: Run) -> list[str]:
    return [origin.id for origin in run.header.origins]


def on_a_worker(run: Run, name: str, cpu_model: str) -> Run:
    """The run as a cluster with one worker stores it. The worker's machine has this CPU."""
    of_worker = stored(with_records(run, lambda record: replace(record, worker="worker-1")), name)
    environment = with_header(run, environment__cpu__model=cpu_model).header.environment
    worker = WorkerHeader(node=cpu_model, gpu_ids=(), environment=environment)
    header = structs.replace(of_worker.header, workers={"worker-1": worker})
    return replace(of_worker, header=header)


FIRST = run_of([0, 1, 2], "first")


def test_other_prompts_are_added_in_the_same_pass() -> None:
    joined = merged([FIRST, run_of([3, 4], "second")])
    assert len({record.key for record in joined.records}) == 10
    assert {record.key.repeat for record in joined.records} == {0}
    origins = {record.key.sample_id: record.origin for record in joined.records}
    assert (origins["gsm8k/2"], origins["gsm8k/3"]) == ("first", "second")
    assert joined.header.num_records == 10
    assert origin_ids(joined) == ["first", "second"]
    assert [origin.num_records for origin in joined.header.origins] == [6, 4]


def test_only_repeated_prompts_are_further_passes() -> None:
    second = slower(with_samples([2, 3]), {"pld": 1.1})
    joined = merged([FIRST, stored(second, "second")])
    repeats = {
        (record.key.sample_id, record.origin): record.key.repeat for record in joined.records
    }
    assert repeats == {
        ("gsm8k/0", "first"): 0,
        ("gsm8k/1", "first"): 0,
        ("gsm8k/2", "first"): 0,
        ("gsm8k/2", "second"): 1,
        ("gsm8k/3", "second"): 0,
    }
    assert joined.header.spec.values.repeats == 2
    assert measure(joined, Bootstrap(50)).pooled("pld", 0.0).num_pairs == 5


def test_merged_workers_keep_distinct_names() -> None:
    first = on_a_worker(with_samples([0]), "a", "A")
    second = on_a_worker(with_samples([1]), "b", "B")
    joined = merged([first, second])
    workers = joined.header.workers
    assert {record.worker for record in joined.records} == {*workers}
    cpu_models = {name: worker.environment.cpu.model for name, worker in workers.items()}
    assert cpu_models == {"a/worker-1": "A", "b/worker-1": "B"}
    again = merged([joined, run_of([2], "d")])
    assert {record.worker for record in again.records} == {"a/worker-1", "b/worker-1", ""}
    assert [*again.header.workers] == ["a/worker-1", "b/worker-1"]


def test_a_merge_of_a_merge_keeps_the_first_origins() -> None:
    inner = merged([FIRST, run_of([3], "second")])
    joined = merged([with_header(inner, id="inner"), run_of([4], "third")])
    assert {record.origin for record in joined.records} == {"first", "second", "third"}
    assert origin_ids(joined) == ["first", "second", "third"]


def test_another_machine_is_merged_and_named() -> None:
    joined = merged([FIRST, run_of([3], "second", environment__cpu__model="Small CPU")])
    assert any("machine: Example CPU 9000" in text for text in joined.header.warnings)
    assert joined.header.origins[1].environment.cpu.model == "Small CPU"
    assert_in(
        joined.header.device_phrase,
        "Example CPU 9000",
        "Small CPU",
    )


CUT = run_of([3, 4], "cut", num_records=12)
"""A run without four of its records."""


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (run_of([3], "second", spec__values__max_new_tokens=7), "--max-new-tokens: 128 in"),
        (run_of([3], "second", status="running"), "second is not finished"),
        (run_of([3], "first"), "Two runs are named first"),
        (CUT, "cut is marked as complete, but 8 of 12 records are"),
    ],
)
def test_a_run_that_does_not_fit_is_refused_with_the_reason(other: Run, difference: str) -> None:
    with error_with(UserError, "cannot be merged", difference):
        merged([FIRST, other])


def test_an_interrupted_run_is_merged() -> None:
    joined = merged([FIRST, stored(CUT, "cut", status="interrupted")])
    assert joined.header.status == "interrupted"
    assert joined.header.num_records == 10


def test_other_files_are_kept_and_files_of_a_killed_merge_are_removed(tmp_path: Path) -> None:
    joined = merged([FIRST, run_of([3], "second")])
    folder = tmp_path / "new"
    folder.mkdir()
    notes = folder / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        write_run(joined, folder)
    assert notes.read_text() == "mine"
    notes.unlink()
    scratch = tmp_path / ".new.merging"
    scratch.mkdir()
    (scratch / "half").write_text("of a run")
    with RunFolder(folder) as opened:
        opened.write_header(structs.replace(joined.header, status="running"))
        with pytest.raises(RunFolderError, match="Another process is writing"):
            write_run(joined, folder)
    write_run(joined, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert read_run(folder).header.status == "complete"
    with pytest.raises(UserError, match="holds a run already"):
        write_run(joined, folder)


def test_a_merge_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    joined = merged([FIRST, run_of([3], "second")])
    error = OSError(errno.ENOSPC, "No space left on device")
    full_disk = patch.object(RunFolder, "append", side_effect=error)
    with full_disk, pytest.raises(RunFolderError, match="No space left"):
        write_run(joined, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_prompt_sets_of_two_runs_become_one_with_a_hash_of_both() -> None:
    def run_with_prompts(numbers: Sequence[int], name: str) -> Run:
        ids = tuple(f"gsm8k/{number}" for number in numbers)
        prompts = PromptsHeader(
            "gsm8k",
            "GSM8K",
            "bundled",
            "a.jsonl",
            "file",
            num_available=6,
            num_prompts=len(ids),
            sha256=name,
            categories={"sums": ids},
        )
        run = with_samples(numbers)
        header = structs.replace(run.header, prompts=(prompts,))
        return stored(Run(header, run.records), name)

    (prompts,) = merged([run_with_prompts([0, 1], "a"), run_with_prompts([2], "b")]).header.prompts
    assert prompts.num_prompts == 3
    assert prompts.categories == {"sums": ("gsm8k/0", "gsm8k/1", "gsm8k/2")}
    assert prompts.sha256 == hashlib.sha256(b"ab").hexdigest()


def test_a_block_of_a_server_is_not_split() -> None:
    def served(numbers: Sequence[int], name: str, factor: float) -> Run:
        block = BlockHeader("pld", 0.0, "gsm8k", 0, 1.0, len(numbers), concurrency=1)
        run = at_loads(with_samples(numbers), {1: {"pld": factor, "vanilla": factor}})
        header = structs.replace(run.header, blocks=(block,))
        return stored(replace(run, header=header), name)

    first = served([0, 1], "first", 1.0)
    with pytest.raises(UserError, match="a server's blocks cannot be split"):
        merged([first, served([1, 2], "second", 1.1)])
    joined = merged([first, served([0, 1], "second", 1.1)])
    assert [block.repeat for block in joined.header.blocks] == [0, 1]


SERVER = {"url": "http://host", "software": "vllm-1", "model": "tiny", "protocol": "chat"}
OTHERS = {"min": 0, "mean": 0.3, "max": 1}
BUSY = {"num_samples": 9, "interval_s": 1.0, "share_of_others": OTHERS}


@pytest.mark.parametrize("join", [merged, Run.pooled])
@pytest.mark.parametrize("servers", [{}, {"pld": SERVER}])
def test_findings_of_a_later_run_are_kept(
    join: Callable[[Sequence[Run]], Run], servers: dict[str, object]
) -> None:
    def run(name: str, factor: float, at_end: str) -> Run:
        return stored(
            slower(FIRST, {"vanilla": factor, "pld": factor}),
            name,
            cpu=BUSY,
            servers=servers,
            hooks={"pld": {"build_s": factor, "remember_s": 1.0, "forget_s": 2.0}},
            weights_print={"at_load": "a", "at_end": at_end, "share": 1.0, "seconds": 1.0},
        )

    header = join([run("first", 1.0, "a"), run("second", 1.1, "b")]).header
    assert header.hooks == {"pld": HookTimes(1.1, 2.0, 4.0, num_runs=2)}
    assert header.weights_print is not None
    assert header.weights_print.at_end == "b"
    busy = "second: Other programs took 30 % of the processor"
    assert any(warning.startswith(busy) for warning in header.warnings) is not bool(servers)


def with_longer_prefills(run: Run, seconds: float) -> Run:
    """The run, with prefills that take this many seconds longer."""
    return with_records(
        run, lambda record: replace(record, prefill_s=(record.prefill_s or 0) + seconds)
    )


def copies() -> dict[str, list[Run]]:
    """Two runs for each disguise, one of which repeats measurements and times of the other."""
    both = replace(merged([FIRST, run_of([3, 4], "rest")]), path=None)
    backwards = replace(both, records=both.records[::-1])
    shorter = replace(FIRST, records=FIRST.records[1:])
    factors = {"pld": 1.1, "vanilla": 1.1}
    two_passes = merged([stored(WHOLE, "a"), stored(slower(WHOLE, factors), "b")])
    with_uid = run_of([0], "with uid", uid="u")
    origin_with_uid = merged([with_uid, run_of([1], "other origin")])
    same_uid = [
        stored(slower(with_samples([number]), factors), "other", uid="u") for number in (1, 2)
    ]
    return {
        "a part": [both, FIRST],
        "other order": [FIRST, stored(backwards, "other")],
        "without a line": [FIRST, stored(shorter, "other")],
        "rewritten": [FIRST, stored(with_longer_prefills(FIRST, 1e-9), "other")],
        "a pass": [two_passes, stored(WHOLE, "x")],
        "a uid": [with_uid, same_uid[0]],
        "a uid of an origin": [origin_with_uid, same_uid[1]],
    }


@pytest.mark.parametrize("runs", copies().values(), ids=copies())
def test_no_measurement_enters_twice(runs: list[Run]) -> None:
    for in_order in (runs, runs[::-1]):
        with pytest.raises(UserError, match="it is given twice, or one is a copy"):
            merged(in_order)


def test_passes_with_an_equal_time_or_short_answers_are_not_copies() -> None:
    second = stored(with_longer_prefills(FIRST, 1e-5), "second")  # with equal decode times
    assert len(merged([FIRST, second]).records) == 12
    short = with_records(
        FIRST, lambda record: replace(record, token_ids=(1,), accept_lengths=(), decode_s=0.0)
    )
    passes = [stored(short, name) for name in ("first", "second")]
    assert len(merged(passes).records) == 12
