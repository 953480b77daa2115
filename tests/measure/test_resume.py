"""Resumed runs: same inputs, same machine, and only the missing samples."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.data.prompts import Prompt
from specbench.errors import CheckpointError, RunFolderError
from specbench.log.header import RunHeader
from specbench.log.machine import Threads
from specbench.log.methods import SettingsHeader
from specbench.log.model import FileHeader, WeightsHeader
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_run
from specbench.machine import environment
from specbench.measure.base import BackendInfo, Plan
from specbench.measure.resume import without_failed
from specbench.measure.session import run_plan
from specbench.report.build import make_report
from specbench.types import Completion, Record, RecordKey, Request, Scope
from tests.support.backend import FakeBackend, FakeSetup, answering, fake_plan
from tests.support.refusals import error_with
from tests.support.texts import assert_in
from tests.support.watching import Watcher

METHODS = {"vanilla": answering(1), "pld": answering(2)}
FIRST = Prompt("maths/1", "", ("1+1",))
PROMPTS = {"maths": [FIRST, Prompt("maths/2", "", ("2+2", "and 1"))]}


class Described(FakeSetup):
    """A fake setup whose model has a file and a template, and whose method has weights.

    `hashes` are those of the file, the weights and the template.
    """

    hashes = "a", "b", "c"
    scope: Scope = "request"
    before: RunHeader | None = None

    def open(self, folder: Path, before: RunHeader | None = None) -> FakeBackend:
        self.before = before
        return super().open(folder, before)

    def describe(self) -> Any:
        about, (model, draft, template) = super().describe(), self.hashes
        files = {"model.safetensors": FileHeader(1, model)}
        weights = WeightsHeader(revision=None, files={"head.safetensors": FileHeader(1, draft)})
        pld = structs.replace(about.methods["pld"], weights=weights, scope=self.scope)
        return structs.replace(
            about,
            model=structs.replace(about.model, files=files, template_sha256=template),
            methods={"vanilla": about.methods["vanilla"], "pld": pld},
        )


def plan_of(prompts: dict[str, list[Prompt]] = PROMPTS) -> tuple[Plan, Described]:
    setup = Described(METHODS)
    return replace(fake_plan(METHODS, prompts, None), setup=setup), setup


def run(path: Path, plan: Plan | None = None, **options: Any) -> Run:
    return run_plan(plan or plan_of()[0], path, Watcher(), given=(), command=("run",), **options)


def cut(path: Path, first: int = 0, keep: int = 3) -> None:
    """Leave a run as after a kill: the records from `first` to `keep`, and a part of the next."""
    samples = path / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[first:keep]) + lines[keep][:20])


def test_a_run_is_not_resumed_with_other_inputs_even_by_force(tmp_path: Path) -> None:
    run(tmp_path)
    cut(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    plan, setup = plan_of({"maths": [FIRST, Prompt("maths/2", "", ("2+3", "and 1"))]})
    setup.hashes = "x", "y", "z"
    with pytest.raises(RunFolderError) as refused:
        run(tmp_path, plan, is_forced=True)
    assert_in(
        refused.value.message,
        'model.files.model.safetensors.sha256 was "a" and is "x"',
        'methods.pld.weights.files.head.safetensors.sha256 was "b" and is "y"',
        'model.template_sha256 was "c" and is "z"',
        "prompts.maths.sha256 was ",
    )
    assert (tmp_path / "run.json").read_bytes() == before


def test_another_machine_needs_force_and_becomes_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = environment.capture()
    first_machine, second_machine = (
        structs.replace(machine, torch=structs.replace(machine.torch, num_threads=number))
        for number in (2, 7)
    )
    monkeypatch.setattr(environment, "capture", lambda: first_machine)
    run(tmp_path)
    cut(tmp_path)
    monkeypatch.setattr(environment, "capture", lambda: second_machine)
    with error_with(RunFolderError, "torch.num_threads was 2 and is 7", hint="--force"):
        run(tmp_path)
    header = run(tmp_path, is_forced=True).header
    assert header.environment == first_machine
    assert [(segment.num_before, segment.environment) for segment in header.segments] == [
        (3, second_machine)
    ]
    (warning,) = [text for text in header.warnings if "num_threads was 2 and is 7" in text]
    assert "after the first 3" in warning
    cut(tmp_path)
    assert len(run(tmp_path).header.segments) == 1  # on its last machine, it needs no force
    monkeypatch.setattr(environment, "capture", lambda: first_machine)
    with pytest.raises(RunFolderError, match="num_threads was 7 and is 2"):
        run(tmp_path)


@pytest.mark.parametrize(("first", "keep"), [(0, 3), (1, 5), (0, 0)])
def test_a_resumed_run_keeps_its_header_and_has_every_record_once(
    tmp_path: Path, first: int, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing samples are found by key and not by number."""
    warned = BackendInfo(warnings=("a warning of the model",))
    monkeypatch.setattr(FakeBackend, "describe", lambda backend, records=(): warned)
    whole = run(tmp_path)
    cut(tmp_path, first, keep)
    again = run(tmp_path)
    assert sorted(again.records, key=whole.records.index) == [*whole.records]
    assert again.header.segments == ()
    assert again.header.warnings.count(*warned.warnings) == 1
    changed = {"finished": None, "warnings": ()}
    assert structs.replace(again.header, **changed) == structs.replace(whole.header, **changed)


@pytest.mark.parametrize("keep", [0, 1])
def test_settings_are_chosen_again_if_there_is_no_record_yet(tmp_path: Path, keep: int) -> None:
    new = run(tmp_path).header
    settings = SettingsHeader("auto", {"num_tokens": 10})
    pld = structs.replace(new.methods["pld"], options={"num_tokens": 2}, settings=settings)
    methods = new.methods | {"pld": pld}
    chosen = structs.replace(new, methods=methods, threads=Threads(2, "measured", "brief"))
    cut(tmp_path, keep=keep)
    with RunFolder(tmp_path) as folder:
        folder.write_header(chosen)
    plan, setup = plan_of()
    again = run(tmp_path, plan).header
    expected = chosen if keep else new
    assert (again.methods, again.threads) == (expected.methods, expected.threads)
    assert bool(setup.before) is bool(keep)


def test_a_run_whose_memory_is_lost_is_not_resumed(tmp_path: Path) -> None:
    plan, setup = plan_of()
    setup.scope = "run"
    run(tmp_path, plan)
    run(tmp_path, plan)  # nothing is missing
    cut(tmp_path)
    with pytest.raises(RunFolderError, match="pld remembers earlier prompts"):
        run(tmp_path, plan)


def test_records_that_the_run_does_not_plan_are_named(tmp_path: Path) -> None:
    run(tmp_path)
    cut(tmp_path)
    samples = tmp_path / "samples.jsonl"
    samples.write_text(samples.read_text().replace("maths/1", "maths/9"))
    with pytest.raises(RunFolderError, match=r"2 records that are not part of it, .* 'maths/9'"):
        run(tmp_path)


def test_weights_that_change_while_they_are_loaded_end_the_run(tmp_path: Path) -> None:
    plan, setup = plan_of()

    class Loading(FakeBackend):
        def __enter__(self) -> Any:
            setup.hashes = ("changed", "b", "c")
            return super().__enter__()

    setup.backend = Loading(METHODS)
    with pytest.raises(CheckpointError, match="were changed while they were loaded"):
        run(tmp_path, plan)
    assert read_run(tmp_path).header.status == "failed"


def test_the_first_error_is_reported_when_the_folder_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def lose(request: Any) -> Any:
        path.rename(tmp_path / "elsewhere")
        return answering(1)(request)

    plan = fake_plan({"vanilla": lose}, PROMPTS, None)
    with pytest.raises(RunFolderError, match=r"samples\.jsonl was removed, moved or replaced"):
        run(path, plan)
    assert not path.exists()


def failing_plan(*, fails: bool) -> Plan:
    """A plan in which PLD fails in second turns if `fails`."""

    def complete(request: Request) -> Completion:
        is_later_turn = len(request.prompt_ids) > 1  # a token per message
        if fails and is_later_turn:
            raise RuntimeError("the server died")
        return answering(2)(request)

    methods = {"vanilla": answering(1), "pld": complete}
    return replace(fake_plan(methods, PROMPTS, None), setup=Described(methods))


def test_failed_requests_are_repeated_on_request(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = run(path, failing_plan(fails=True))
    failed = [record.key for record in first.records if not record.is_ok]
    assert failed and {key.method for key in failed} == {"pld"}
    kept = run(path, failing_plan(fails=False))
    assert [record.key for record in kept.records if not record.is_ok] == failed
    repeated = run(path, failing_plan(fails=False), repeats_failed=True)
    assert all(record.is_ok for record in repeated.records)
    assert {record.key for record in repeated.records} == {record.key for record in first.records}
    assert len(repeated.records) == len(first.records)
    assert repeated.num_repeated == len(failed)
    again = run(path, failing_plan(fails=False), repeats_failed=True)
    assert again.records == repeated.records, "nothing is left to repeat"
    text = " ".join(note.text for note in make_report(again, Bootstrap(20)).notes)
    assert f"repeated after a failure: {len(failed)}" in text


def test_a_segment_begins_after_the_kept_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(tmp_path, failing_plan(fails=True))
    num_kept = sum(record.is_ok for record in first.records)
    machine = environment.capture()
    other_torch = structs.replace(machine.torch, num_threads=machine.torch.num_threads + 1)
    other_machine = structs.replace(machine, torch=other_torch)
    monkeypatch.setattr(environment, "capture", lambda: other_machine)
    plan = failing_plan(fails=False)
    (segment,) = run(tmp_path, plan, repeats_failed=True, is_forced=True).header.segments
    assert segment.num_before == num_kept < len(first.records)


def test_a_line_may_repeat_only_a_failed_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(path, failing_plan(fails=True))
    samples = path / "samples.jsonl"
    lines = samples.read_text().splitlines()
    answer = next(line for line in lines if '"status":"ok"' in line)
    failure = next(line for line in lines if '"status":"error"' in line)
    samples.write_text("\n".join([*lines, failure]) + "\n")
    assert read_run(path).num_repeated == 1
    samples.write_text("\n".join([*lines, answer]) + "\n")
    with pytest.raises(RunFolderError, match=r"is in line \d+ already"):
        read_run(path)


def test_a_failed_turn_before_an_answered_one_is_kept() -> None:
    key = RecordKey("pld", 0.0, "maths", "maths/2", 0, 0)
    failed = Record(key, "error", 3, error="the server died")
    answered = Record(replace(key, turn=1), "ok", 3)
    last = Record(replace(key, turn=2), "error", 3, error="the server died")
    assert without_failed([failed, answered, last]) == (failed, answered)
