from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from specbench.cli import main
from tests.support.checkpoint import save_checkpoint, write_prompts


@dataclass(frozen=True)
class Said:
    """What a command left: exit code, stdout and stderr."""

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
    """The command line, run in this process in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["specbench", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return Said(int(stop.value.code or 0), out, err)

    return call


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "mine.jsonl", ["ab ab ab ab"], ["one two", "and three"])
