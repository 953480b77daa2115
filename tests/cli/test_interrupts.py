"""Ctrl-C, SIGTERM and SIGHUP: exit code 130, and the command to resume with."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

from specbench.cli.interrupts import resumable, resume_command
from tests.cli.conftest import Specbench

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def _called_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["specbench"])


@pytest.mark.parametrize(
    ("call", "more"),
    [
        (["run", "--prompts", "my prompts.jsonl"], ["--output", "one", "--resume"]),
        (["run", "--output", "one", "--resume"], []),
        (["run", "--output=one", "--resume"], []),
    ],
)
def test_the_resume_command_repeats_the_call_and_no_option(
    call: list[str], more: list[str]
) -> None:
    shown = resume_command(call, "--output", Path("one"))
    assert shlex.split(shown) == ["specbench", *call, *more]


def test_without_a_run_no_resume_is_offered(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), resumable(tmp_path / "none", "--output", ["run"]):
        raise KeyboardInterrupt


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_any_command_with_130_and_a_message(
    how: signal.Signals, specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.cli.catalog.load_cards", lambda: signal.raise_signal(how))
    before = [signal.getsignal(one) for one in ENDING]
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        said = specbench("show", "gsm8k")
    finally:
        signal.signal(signal.SIGINT, previous)
    assert (said.code, said.err) == (130, "Interrupted.\n")
    assert [signal.getsignal(one) for one in ENDING] == before


def test_an_interrupt_while_modules_are_imported_is_told(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Importing(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "specbench.cli.app", Importing("app"))
    said = specbench("list", "methods")
    assert (said.code, said.err) == (130, "Interrupted.\n")


def test_a_second_signal_does_not_interrupt_the_cleanup(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def command() -> None:
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(signal.SIGTERM)
            ended.append("cleanly")

    monkeypatch.setattr("specbench.cli.catalog.load_cards", command)
    assert specbench("show", "gsm8k").code == 130
    assert ended == ["cleanly"]


def test_a_signal_that_nohup_ignores_stays_ignored(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def command() -> dict[str, object]:
        signal.raise_signal(signal.SIGHUP)
        return {}

    monkeypatch.setattr("specbench.cli.catalog.load_cards", command)
    try:
        said = specbench("show", "gsm8k")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert said.code == 2


def test_a_program_outside_the_path_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "specbench"
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "")
    assert resume_command(["run"], "--output", Path("one")).startswith(f"{program} run")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resume_command(["run"], "--output", Path("one")).startswith("specbench run")
