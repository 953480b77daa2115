"""Invalid arguments and broken output streams: one message, exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specbench.cli.interrupts import check_arguments
from specbench.errors import UserError
from tests.packaging.shell import ROOT, run

LIST = "list models"


def shell(script: str, folder: Path) -> tuple[int, str, str]:
    """A shell script with the program as `$SB`: its exit code, stdout and stderr."""
    given = f"SB='{sys.executable} -m specbench'; {script}"
    done = run(["bash", "-c", given], folder, path=[ROOT])
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("to", "told"),
    [
        pytest.param(
            "> /dev/full", "stdout: No space left on device.",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here"),
        ),
        (">&-", "stdout is closed."),
        ("| true", "stdout: Broken pipe."),
    ],
)  # fmt: skip
def test_a_broken_stdout_is_one_message(tmp_path: Path, to: str, told: str) -> None:
    code, _, err = shell(f"set -o pipefail; $SB {LIST} {to}", tmp_path)
    assert (code, err.splitlines()[0]) == (2, f"Error: {told}")
    assert "Traceback" not in err


def test_an_ascii_terminal_shows_a_list(tmp_path: Path) -> None:
    code, out, err = shell(f"PYTHONIOENCODING=ascii LC_ALL=C $SB {LIST}", tmp_path)
    assert (code, err) == (0, "More about one of them: specbench show NAME\n")
    assert "vicuna-13b" in out


@pytest.mark.parametrize("name", ["$'a\\xff'", "$'a\\e[31m'", "$'a\\n::error::b'"])
def test_an_argument_that_is_not_utf8_is_one_message(tmp_path: Path, name: str) -> None:
    code, _, err = shell(f"$SB report {name}", tmp_path)
    assert code == 2
    assert "is not UTF-8, or has control characters" in err
    assert err.count("\n") == 2 and "\x1b" not in err


def test_a_prompt_may_have_several_lines() -> None:
    check_arguments(["race", "one\n\ttwo"])
    with pytest.raises(UserError):
        check_arguments(["report", "one\ntwo"])
    with pytest.raises(UserError):
        check_arguments(["race", "one\x1b[2J"])
