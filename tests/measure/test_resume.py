"""Resumed runs: same inputs, same machine, and only the missing samples."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specbench.data.prompts import Prompt
from specbench.errors import CheckpointError, RunFolderError
from specbench.log.header import (
    FileHeader,
    MethodHeader,
    RunHeader,
    SettingsHeader,
    WeightsHeader,
)
from specbench.log.machine import Environment, Threads
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_run
from specbench.machine import environment
from specbench.measure.base import Plan
from specbench.measure.session import run_plan
from tests.support.backend import FakeBackend, FakeSetup, answering, fake_plan
from tests.support.watching import Watcher

METHODS = {"vanilla": answering(1), "pld": answering(2)}
PROMPTS = {"maths": [Prompt("maths/1", "", ("1+1",)), Prompt("maths/2", "", ("2+2", "and 1"))]}


def plan_of(prompts: Mapping[str, Any] = PROMPTS, **weights: Any) -> Plan:
    plan = fake_plan(METHODS, prompts, None)
    return replace(plan, setup=Described(METHODS, **weights))


class Described(FakeSetup):
    """A fake setup whose model has a file and a template, and whose method has weights."""

    def __init__(
        self, methods: Any, model: str = "a", draft: str = "b", template: str = "c"
    ) -> None:
        super().__init__(methods)
        self.hashes = model, draft, template
        self.before: RunHeader | None = None

    def open(self, folder: Path, before: RunHeader | None = None) -> FakeBackend:
        self.before = before
        return super().open(folder, before)

    def describe(self) -> Any:
        about, (model, draft, template) = super().describe(), self.hashes
        files = {"model.safetensors": FileHeader(1, model)}
        weights = WeightsHeader(revision=None, files={"head.safetensors": FileHeader(1, draft)})
        return structs.replace(
            about,
            model=structs.replace(about.model, files=files, template_sha256=template),
            methods={"vanilla": about.methods["vanilla"], "pld": weighted(about, weights)},
        )


def weighted(about: Any, weights: WeightsHeader) -> MethodHeader:
    return structs.replace(about.methods["pld"], weights=weights)


def run(path: Path, plan: Plan | None = None, **options: Any) -> Run:
    return run_plan(plan or plan_of(), path, Watcher(), given=(), command=("run",), **options)


def cut(path: Path, keep: int = 3) -> None:
    """The run as after a kill: only the first records."""
    samples = path / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:keep]) + lines[keep][:20])


OTHER = {"maths": [Prompt("maths/1", "", ("1+1",)), Prompt("maths/2", "", ("2+3", "and 1"))]}


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (plan_of(model="x"), 'model.files.model.safetensors.sha256 was "a" and is "x"'),
        (plan_of(draft="x"), 'methods.pld.weights.files.head.safetensors.sha256 was "b"'),
        (plan_of(template="x"), 'model.template_sha256 was "c" and is "x"'),
        (plan_of(OTHER), "prompts.maths.sha256 was "),
    ],
)
def test_a_run_is_not_resumed_with_other_inputs_even_by_force(
    tmp_path: Path, plan: Plan, named: str
) -> None:
    run(tmp_path)
    cut(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(RunFolderError) as refused:
        run(tmp_path, plan, is_forced=True)
    assert named in refused.value.message
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Environment]:
    """A function that sets the number of threads in the machine's environment."""
    captured = environment.capture()

    def change(num_threads: int) -> Environment:
        torch = structs.replace(captured.torch, num_threads=num_threads)
        made = structs.replace(captured, torch=torch)
        monkeypatch.setattr(environment, "capture", lambda: made)
        return made

    return change


def test_another_machine_needs_force_and_is_a_segment_with_a_warning(
    tmp_path: Path, on_machine: Callable[[int], Environment]
) -> None:
    first = on_machine(2)
    run(tmp_path)
    cut(tmp_path)
    second = on_machine(7)
    with pytest.raises(RunFolderError, match=r"torch\.num_threads was 2 and is 7") as refused:
        run(tmp_path)
    assert "--force" in refused.value.hint
    header = run(tmp_path, is_forced=True).header
    assert header.environment == first
    assert [(one.num_before, one.environment) for one in header.segments] == [(3, second)]
    (warning,) = [text for text in header.warnings if "num_threads was 2 and is 7" in text]
    assert "after the first 3" in warning
    cut(tmp_path)
    assert len(run(tmp_path).header.segments) == 1  # on its last machine it needs no force
    on_machine(2)
    with pytest.raises(RunFolderError, match="num_threads was 7 and is 2"):
        run(tmp_path)


def test_a_resumed_run_keeps_its_header_and_has_every_record_once(tmp_path: Path) -> None:
    whole = run(tmp_path)
    cut(tmp_path)
    again = run(tmp_path)
    assert again.records == whole.records
    assert again.header.segments == ()
    changed = {"finished": None, "warnings": ()}
    assert structs.replace(again.header, **changed) == structs.replace(whole.header, **changed)


@pytest.mark.parametrize("keep", [0, 1])
def test_settings_and_threads_are_chosen_anew_if_there_is_no_record_yet(
    tmp_path: Path, keep: int
) -> None:
    new = run(tmp_path).header
    settings = SettingsHeader("auto", {"num_tokens": 10})
    pld = structs.replace(new.methods["pld"], options={"num_tokens": 2}, settings=settings)
    methods = new.methods | {"pld": pld}
    chosen = structs.replace(new, methods=methods, threads=Threads(2, "measured", "brief"))
    cut(tmp_path, keep)
    with RunFolder(tmp_path) as folder:
        folder.write_header(chosen)
    plan = plan_of()
    again = run(tmp_path, plan).header
    expected = chosen if keep else new
    assert (again.methods, again.threads) == (expected.methods, expected.threads)
    assert bool(plan.setup.before) is bool(keep)  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep", [0, 5])
def test_missing_samples_are_found_by_key_and_not_by_number(tmp_path: Path, keep: int) -> None:
    whole = run(tmp_path)
    samples = tmp_path / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    del lines[keep]
    samples.write_text("".join(lines))
    assert {one.key for one in run(tmp_path).records} == {one.key for one in whole.records}


def test_records_that_the_run_does_not_plan_are_named(tmp_path: Path) -> None:
    run(tmp_path)
    cut(tmp_path)
    samples = tmp_path / "samples.jsonl"
    samples.write_text(samples.read_text().replace("maths/1", "maths/9"))
    with pytest.raises(RunFolderError, match=r"2 records that are not part of it, .* 'maths/9'"):
        run(tmp_path)


def test_records_without_a_header_are_not_resumed(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunFolderError, match=r"has samples\.jsonl, but no run\.json"):
        run(tmp_path)


def test_weights_that_change_while_they_are_loaded_end_the_run(tmp_path: Path) -> None:
    setup = Described(METHODS)
    plan = replace(plan_of(), setup=setup)

    class Loading(type(setup.backend)):  # type: ignore[misc]
        def __enter__(self) -> Any:
            setup.hashes = ("changed", "b", "c")
            return super().__enter__()

    with pytest.raises(CheckpointError, match="were changed while they were loaded"):
        run(tmp_path, plan, backend=Loading(METHODS))
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
