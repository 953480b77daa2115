"""The output of a new user's first run fits on one screen."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from specbench.registry import paper_methods
from tests.support.paths import ROOT

PROGRAM = Path(__file__).with_name("fake_program.py")
ROWS = 40


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "limit"), [(80, 8), (120, 2), (200, 2)])
def test_a_first_run_fits_the_screen(columns: int, limit: int, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": str(columns)}
    command = [sys.executable, str(PROGRAM), "run", "--limit", str(limit)]
    master, slave = pty.openpty()
    with Path(tmp_path, "err").open("w+") as err:
        run = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=slave, stderr=err)
        os.close(slave)
        out = b""
        with suppress(OSError):  # the terminal's program has ended
            while chunk := os.read(master, 65536):
                out += chunk
        os.close(master)
        assert run.wait() == 0
        err.seek(0)
        errors = err.read().splitlines()
    samples = re.compile(r"\[\d+/\d+\] ")  # a terminal shows them in one line
    notes = [line for line in errors if not samples.match(line)]
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.decode()).splitlines()
    assert len(notes) + len(shown) < ROWS  # the shell's prompt needs a line
    assert max(map(len, shown)) <= columns
    text = " ".join(shown)
    assert "prompts bundled with specbench" in text
    verdict = "is the fastest in this run, at" if limit > 2 else "has the highest speedup,"
    assert f"suffix {verdict}" in text
    rows = [line.split()[0] for line in shown if re.match(r"\w+ .*\dx ", line)]
    fake = [*paper_methods(), "recycling", "sam", "suffix"]  # each faster than the one before
    assert rows[:12] == fake[::-1]
    assert len(re.findall(r"x ±", text)) >= 11 and "tok/s" in text
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    assert f"Run: {folder.relative_to(tmp_path)}" in [*shown, *notes]
