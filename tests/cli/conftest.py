from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from specbench.cli import main
from specbench.measure import plan
from specbench.measure.spec import RunSpec
from specbench.report import build
from tests.support.backend import Answer, FakeSetup, answering
from tests.support.checkpoint import save_checkpoint, write_prompts


@dataclass(frozen=True)
class Said:
    """Exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str


Specbench = Callable[..., Said]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "target")


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "draft", seed=1, layers=1)


@pytest.fixture
def specbench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Specbench:
    """The command line, run in this process and in an empty folder.

    A call with `code` fails unless the command ends with this exit code.

    Reports have no plots, which take longer than everything else in a small run.
    """
    monkeypatch.setattr(build, "make_plots", lambda report: ())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*arguments: object, code: int | None = None) -> Said:
        monkeypatch.setattr(sys, "argv", ["specbench", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        said = Said(int(stop.value.code or 0), out, err)
        assert code in (None, said.code), f"{out}{err}"
        return said

    return call


def cut(folder: Path, end: int) -> None:
    """Remove a run's records from this place on."""
    samples = folder / "samples.jsonl"
    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:end]))


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "mine.jsonl", ["ab ab ab ab"], ["one two", "and three"])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Answer]:
    """Replace the backend of runs by a fake one. The fixture maps methods to their answers."""
    answers: dict[str, Answer] = {}

    def make_setup(spec: RunSpec, *, is_offline: bool) -> FakeSetup:
        labels = ["vanilla"] * spec.is_baseline_run + [*spec.methods]
        return FakeSetup({label: answers.get(label, answering(1)) for label in labels})

    monkeypatch.setattr(plan, "make_setup", make_setup)
    return answers
