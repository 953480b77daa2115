"""A run that a signal ends keeps its samples, and is resumed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from specbench.log.store import read_run
from tests.packaging.shell import output
from tests.support.paths import ROOT

WHOLE = ("-m", "specbench")
WITHOUT_TORCH = (str(Path(__file__).with_name("fake_program.py")),)


def wait_for_samples(run: subprocess.Popen[str], out: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while run.poll() is None and time.monotonic() < deadline:
        samples = out / "samples.jsonl"
        if samples.exists() and samples.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    run.kill()
    raise AssertionError(f"{out} did not get {count} samples in time: {run.communicate()[1]}")


@pytest.mark.parametrize(
    ("program", "how"),
    [
        pytest.param(WHOLE, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(WITHOUT_TORCH, signal.SIGINT, marks=pytest.mark.slow),
        (WITHOUT_TORCH, signal.SIGKILL),
        pytest.param(WITHOUT_TORCH, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(WITHOUT_TORCH, signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_run_ended_in_the_middle_can_be_resumed(
    program: Sequence[str], how: signal.Signals, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    """The run has 72 records, so the signal comes before its end."""
    out = tmp_path / "run"
    command = [
        sys.executable, *program, "run", "--model", str(model), "--method", "pld,lookahead",
        "--prompts", str(prompt_file), "--template", "none", "--max-new-tokens", "60",
        "--offline", "--repeats", "8", "--output", str(out),
    ]  # fmt: skip
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "FAKE_PAUSE_S": "0.02"}
    first = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Background jobs of a shell ignore Ctrl-C, and this suite may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_for_samples(first, out, 10)
    first.send_signal(how)
    _, err = first.communicate(timeout=60)
    before = read_run(out)
    if how == signal.SIGKILL:
        assert before.header.status == "running"
    else:
        assert first.returncode == 130, err
        assert before.header.status == "interrupted"
        lines = err.splitlines()  # libraries may print something at the end
        advice = lines[lines.index(f"Interrupted. What was done is kept in {out}.") + 1]
        called = [sys.executable, *program] if program == WHOLE else [*program]
        assert shlex.split(advice)[2:][: len(called) + 1] == [*called, "run"]
        assert shlex.split(advice)[-3:] == ["--output", str(out), "--resume"]
    assert 10 <= len(before.records) < 72
    again = [sys.executable, *program, "run", "--output", str(out), "--resume", "--quiet"]
    output(again, tmp_path, path=[ROOT])
    after = read_run(out)
    assert after.header.status == "complete"
    assert after.records[: len(before.records)] == before.records
    keys = [record.key for record in after.records]
    assert len(keys) == len(set(keys)) == 72
