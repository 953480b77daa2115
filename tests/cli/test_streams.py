"""Invalid arguments and broken output streams: one message, exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specbench.cli.streams import IN_ASCII
from tests.cli.conftest import Specbench
from tests.packaging.shell import run
from tests.support.paths import ROOT


def shell(script: str, folder: Path) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a shell script.

    `$LIST` is the command that lists models.
    """
    given = f"set -o pipefail; LIST='{sys.executable} -m specbench list models'; {script}"
    done = run(["bash", "-c", given], folder, path=[ROOT])
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("to", "message"),
    [
        pytest.param(
            "> /dev/full", "stdout: No space left on device.",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here"),
        ),
        (">&-", "stdout is closed."),
        ("| true", "stdout: Broken pipe."),
    ],
)  # fmt: skip
def test_a_broken_stdout_gives_one_message(tmp_path: Path, to: str, message: str) -> None:
    code, _, err = shell(f"$LIST {to}", tmp_path)
    assert (code, err.splitlines()[0]) == (2, f"Error: {message}")
    assert "Traceback" not in err


def test_an_ascii_terminal_shows_a_list(tmp_path: Path) -> None:
    code, out, err = shell("PYTHONIOENCODING=ascii LC_ALL=C $LIST", tmp_path)
    assert (code, err) == (0, "For details of one: specbench show NAME\n")
    assert "vicuna-13b" in out


@pytest.mark.parametrize(("text", "expected"), [("0.94x ±0.48 …", "0.94x +-0.48 ..."), ("é", "?")])
def test_a_stream_of_ascii_has_the_nearest_characters(text: str, expected: str) -> None:
    assert text.encode("ascii", IN_ASCII).decode() == expected


@pytest.mark.parametrize("name", ["a\udcff", "a\x1b[31m", "a\n::error::b"])
def test_an_argument_that_is_not_utf8_gives_one_message(specbench: Specbench, name: str) -> None:
    said = specbench("report", name)
    assert said.code == 2 and "is not UTF-8, or has control characters" in said.err
    assert said.err.count("\n") == 2 and "\x1b" not in said.err


def test_a_prompt_may_have_several_lines(specbench: Specbench) -> None:
    assert "No method 'plt'" in specbench("race", "one\n\ttwo", "--method", "plt").err
    assert "control characters" in specbench("race", "one\x1b[2J").err
