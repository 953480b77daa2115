"""A new user's first commands in a real terminal: the screen after each."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from specbench.registry import paper_methods
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("fake_program.py")
ROWS = 40
CTRL_C = "\x03"


def start(cwd: Path, *words: str, columns: int, **env: str) -> Terminal:
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
    command = [sys.executable, str(PROGRAM), *words]
    return Terminal(command, cwd, env, columns=columns, rows=ROWS)


def screen(terminal: Terminal, *, code: int = 0) -> list[str]:
    """The lines that a command left on the screen."""
    ended = terminal.end()
    assert ended == code, "\n".join(terminal.lines)
    return terminal.lines


@pytest.mark.parametrize(("columns", "limit"), [(80, 8), (120, 2), (200, 2)])
def test_a_first_run_fits_the_screen(columns: int, limit: int, tmp_path: Path) -> None:
    shown = screen(start(tmp_path, "run", "--limit", str(limit), columns=columns))
    assert len(shown) < ROWS  # the last line is the prompt's
    text = " ".join(shown)
    assert "prompts bundled with specbench" in text
    verdict = "is the fastest in this run, at" if limit > 2 else "has the highest speedup,"
    assert f"suffix {verdict}" in text
    rows = [line.split()[0] for line in shown if re.match(r"\w+ .*\dx ", line)]
    assert rows[:12] == [*paper_methods(), "recycling", "sam", "suffix"]  # and the verdict
    (run,) = (tmp_path / "results" / "runs").iterdir()
    assert f"Run: {run.relative_to(tmp_path)}" in shown


def test_a_first_day_goes_on_after_ctrl_c_and_compares_its_runs(tmp_path: Path) -> None:
    def command(*words: str, code: int = 0) -> list[str]:
        return screen(start(tmp_path, *words, columns=80), code=code)

    command("run", "--limit", "2")
    (run,) = (tmp_path / "results" / "runs").iterdir()
    words = ("run", "--method", "pld", "--limit", "2", "--output", "mine")
    interrupted = start(tmp_path, *words, columns=80, FAKE_PAUSE_S="0.1")
    interrupted.wait_for("left")
    interrupted.press(CTRL_C)
    said = "".join(screen(interrupted, code=130))
    assert "Interrupted. What was done is kept in mine." in said
    again = said.partition("Continue with: ")[2]  # a line may end between two words
    assert "".join(again.split()) == "".join([str(PROGRAM), *words, "--resume"])

    assert command(*words, "--resume")[0] == "Continuing the run in mine"
    assert "of the tasks" in " ".join(command("compare", str(run), "mine/run.json"))
    gate = command("check", "mine", "--baseline", str(run), code=1)
    assert any(line.startswith("FAILED: mine falls behind") for line in gate)
    assert any(run.name in line and "complete" in line for line in command("list", "runs"))


def test_ctrl_c_under_make_says_how_to_go_on(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "specbench"
    program.parent.mkdir()
    call = shlex.join([sys.executable, str(PROGRAM)])
    program.write_text(f'#!/bin/sh\nexec {call} "$@" --limit 2 --output mine\n')
    program.chmod(0o755)
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", ".venv/.installed", "run", "BIN=bin"]
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FAKE_PAUSE_S": "0.1"}
    columns = 80 + len(str(PROGRAM))  # for the command to stand on one line
    terminal = Terminal(command, tmp_path, env, columns=columns, rows=ROWS)
    terminal.wait_for("left")
    terminal.press(CTRL_C)
    said = "\n".join(screen(terminal, code=-signal.SIGINT))
    assert "Interrupted. What was done is kept in mine." in said
    words = said.partition("Continue with: ")[2].splitlines()[0]
    assert words == f"{PROGRAM} run --limit 2 --output mine --resume"
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("rum",), "run"),
        (("run", "--metod", "pld"), "--method"),
        (("run", "--device", "gpu"), "--device cuda"),
        (("run", "--dataset", "gsm9k"), "Did you mean 'gsm8k'?"),
        (("show", "eagel2"), "Did you mean 'eagle2'?"),
        (("report", "nowhere"), "There is no run in nowhere"),
    ],
)
def test_a_typo_is_answered_in_a_few_lines(
    words: tuple[str, ...], answer: str, tmp_path: Path
) -> None:
    shown = screen(start(tmp_path, *words, columns=80), code=2)
    assert answer in " ".join(shown)
    assert len(shown) <= 6 and "Traceback" not in shown[0]
