"""Ctrl-C, SIGTERM and SIGHUP: exit code 130, and the command to resume with."""

from __future__ import annotations

import gc
import shlex
import signal
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from specbench.cli.interrupts import resumable, resume_command
from tests.cli.conftest import Said, Specbench

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
ONE = Path("one")


@pytest.mark.parametrize(
    ("call", "more"),
    [
        (["run", "--prompts", "my prompts.jsonl"], ["--output", "one", "--resume"]),
        (["run", "--output", "one", "--resume"], []),
        (["run", "--output=one", "--resume"], []),
    ],
)
def test_the_resume_command_repeats_the_call(
    call: list[str], more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["specbench"])
    assert shlex.split(resume_command(call, "--output", ONE)) == ["specbench", *call, *more]


def test_without_a_run_no_resume_is_offered(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), resumable(tmp_path / "none", "--output", ["run"]):
        raise KeyboardInterrupt


@pytest.fixture
def during(specbench: Specbench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run a command that calls a function in its middle."""

    def call(happens: Callable[[], object]) -> Said:
        monkeypatch.setattr("specbench.cli.catalog.load_cards", happens)
        return specbench("show", "gsm8k")

    return call


@pytest.mark.parametrize("how", [signal.SIGINT, *ENDING])
def test_a_signal_ends_any_command_with_130_and_a_message(
    how: signal.Signals, during: Callable[..., Said]
) -> None:
    handlers_before = [signal.getsignal(signal_number) for signal_number in ENDING]
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        said = during(lambda: signal.raise_signal(how))
    finally:
        signal.signal(signal.SIGINT, previous)
    assert (said.code, said.err) == (130, "Interrupted.\n")
    assert [signal.getsignal(signal_number) for signal_number in ENDING] == handlers_before


def test_an_interrupt_while_modules_are_imported_is_reported(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Importing(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "specbench.cli.app", Importing("app"))
    said = specbench("list", "methods")
    assert (said.code, said.err) == (130, "Interrupted.\n")


def test_a_second_signal_does_not_interrupt_the_cleanup(during: Callable[..., Said]) -> None:
    ended = []

    def signals() -> None:
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(signal.SIGTERM)
            ended.append("cleanly")

    assert during(signals).code == 130
    assert ended == ["cleanly"]


class Finalizer:
    """An object that calls a function when it is deleted."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __del__(self) -> None:
        self.call()


def _in_a_finalizer(call: Callable[[], object]) -> None:
    Finalizer(call)


def _in_a_weak_reference(call: Callable[[], object]) -> None:
    target = Finalizer(lambda: None)
    reference = weakref.ref(target, lambda _: call())
    del target
    assert reference() is None


def _in_the_garbage_collector(call: Callable[[], object]) -> None:
    def collected(phase: str, _: object) -> None:
        if phase == "stop":
            gc.callbacks.remove(collected)
            call()

    gc.callbacks.append(collected)
    gc.collect()


@pytest.mark.parametrize("how", [signal.SIGINT, *ENDING])
@pytest.mark.parametrize(
    "within", [_in_a_finalizer, _in_a_weak_reference, _in_the_garbage_collector]
)
@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_signal_in_a_finalizer_ends_any_command(
    within: Callable[[Callable[[], object]], None],
    how: signal.Signals,
    num_signals: int,
    during: Callable[..., Said],
) -> None:
    def happens() -> None:
        for _ in range(num_signals):
            within(lambda: signal.raise_signal(how))
        end_s = time.monotonic() + 10
        while time.monotonic() < end_s:
            time.sleep(0.001)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        said = during(happens)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert (said.code, said.err) == (130, "Interrupted.\n")


def test_a_command_that_ends_right_after_a_dropped_signal_is_interrupted(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def happens(code: int) -> None:
        _in_a_finalizer(lambda: signal.raise_signal(signal.SIGTERM))
        raise SystemExit(code)

    monkeypatch.setattr("specbench.cli.catalog.load_cards", lambda: happens(0))
    assert specbench("show", "gsm8k").code == 130
    monkeypatch.setattr("specbench.cli.catalog.load_cards", lambda: happens(2))
    assert specbench("show", "gsm8k").code == 2


def test_an_interrupt_that_a_library_turns_into_an_error_still_counts(
    during: Callable[..., Said],
) -> None:
    def happens() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise SystemError("a library failed") from error

    said = during(happens)
    assert (said.code, said.err) == (130, "Interrupted.\n")


def test_other_errors_of_finalizers_are_reported_as_before(
    during: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: errors.append(dropped.exc_value))

    def happens() -> dict[str, object]:
        _in_a_finalizer(lambda: [][1])
        return {}

    assert during(happens).code == 2
    assert {type(error) for error in errors} == {IndexError}


def test_a_signal_that_nohup_ignores_stays_ignored(during: Callable[..., Said]) -> None:
    def signals() -> dict[str, object]:
        signal.raise_signal(signal.SIGHUP)
        return {}

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        said = during(signals)
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
    assert resume_command(["run"], "--output", ONE).startswith(f"{program} run")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resume_command(["run"], "--output", ONE).startswith("specbench run")
