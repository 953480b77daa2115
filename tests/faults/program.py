"""The command line, run in this process, with checks that every command must pass."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import chdir
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from specbench.cli import main
from specbench.cli.options import quiet_libraries
from specbench.cli.progress import ProgressView
from specbench.data.prompts import Prompt
from specbench.log.audit import write_audit
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_run
from specbench.measure.plan import make_plan
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.types import Completion, Phases, Request, Step, TracedStep
from tests.cli.conftest import Said
from tests.support.audits import failed_audit, passed_audit, stored_audit
from tests.support.backend import fake_plan
from tests.support.checkpoint import save_checkpoint
from tests.support.watching import Watcher


def specbench(*arguments: object, folder: Path, **environment: str) -> Said:
    """Run a command in a folder. Whatever it raises is raised: that would be a raw traceback.

    An exit code of 2 comes with an error message, and 0 without one.
    """
    streams = [TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    code = 0
    with (
        chdir(folder),
        patch.object(sys, "argv", ["specbench", *map(str, arguments)]),
        patch.object(sys, "stdout", streams[0]),
        patch.object(sys, "stderr", streams[1]),
        patch.dict(os.environ, {"HF_HUB_OFFLINE": "1", **environment}),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    assert code in (0, 1, 2), f"exit code {code}"
    is_told = any(line.startswith(("Error: ", "Usage: ")) for line in err.splitlines())
    assert is_told == (code == 2) or (is_told and code == 1), (code, err)
    return Said(code, out, err)


def ran(spec: RunSpec, folder: Path) -> Run:
    """A run in a folder, as the command line makes it."""
    quiet_libraries()
    with chdir(folder), patch("specbench.machine.bandwidth.bandwidth", lambda device, block: 1e9):
        return run_plan(make_plan(spec, is_offline=True), folder / "run", ProgressView(), given=[])


@cache
def model_folder() -> Path:
    """A small model, saved once a process."""
    folder = Path(tempfile.mkdtemp(prefix="fault-model-"))
    return save_checkpoint(folder / "model")


def written_report(folder: Path) -> dict[str, bytes]:
    """The files of a report by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@cache
def run_folder() -> Path:
    """A small run with everything that a record can have."""
    folder = Path(tempfile.mkdtemp(prefix="fault-run-"))
    prompts = {
        "gsm8k": [Prompt("gsm8k/1", "", ("one", "two")), Prompt("gsm8k/2", "", ("three",))],
        "alpaca": [Prompt("alpaca/1", "", ("four",))],
    }
    spec = RunSpec(temperatures=(0.0, 1.0))
    plan = fake_plan({"vanilla": _answer(1), "pld:ngram=2": _answer(3)}, prompts, spec)
    run_plan(plan, folder, Watcher(), given=("model",), command=("run",))
    assert len(read_run(folder).records) == 16
    with RunFolder(folder):
        pass
    write_audit(
        folder, stored_audit(passed_audit("vanilla", 1.0), failed_audit("pld:ngram=2", 1.0))
    )
    return folder


def _answer(length: int) -> Any:
    def complete(request: Request) -> Completion:
        steps = (Step(length, length), Step(length, length))
        return Completion(
            tuple(range(1 + 2 * length)), "eos", steps, 0.1, 0.2 / length,
            phases=Phases(0.01, 0.02, 0.03, 0.04), peak_memory_bytes=100, energy_j=1.0,
            trace=(TracedStep((0, 0), (0.0, -0.5), (0, 1)),),
        )  # fmt: skip

    return complete
