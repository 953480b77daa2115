"""The command line, run in this process, with checks that every command must pass."""

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import chdir
from functools import cache, partial
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from specbench.cli import main
from specbench.cli.options import quiet_libraries
from specbench.cli.progress import progress_view
from specbench.data.prompts import Prompt
from specbench.errors import UserError
from specbench.log.audit import write_audit
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_run
from specbench.machine import environment
from specbench.measure.base import Progress
from specbench.measure.plan import make_plan
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.types import Completion, Phases, Request, Step, TracedStep
from tests.cli.conftest import Said
from tests.support.audits import failed_audit, passed_audit, stored_audit
from tests.support.backend import Answer, fake_plan
from tests.support.checkpoint import save_checkpoint
from tests.support.headers import make_header
from tests.support.watching import Watcher


def specbench(*arguments: object, folder: Path, **environment: str) -> Said:
    """Run a command in a folder. Its exceptions are raised, since a user would see a raw traceback.

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
    assert code in (0, 1, 2, 3), f"exit code {code}"  # 3: check could not judge all
    has_error = any(line.startswith(("Error: ", "Usage: ")) for line in err.splitlines())
    assert has_error == (code == 2) or (has_error and code == 1), (code, err)
    return Said(code, out, err)


without_plots = partial(patch, "specbench.report.build.make_plots", lambda report: ())
"""Within this context, reports have no plots, which take seconds."""


def ran(spec: RunSpec, folder: Path) -> Run:
    """Make the run of this spec in a folder, as the command line does."""
    quiet_libraries()
    with chdir(folder), patch("specbench.machine.bandwidth.bandwidth", lambda device, block: 1e9):
        plan, view = make_plan(spec, is_offline=True), progress_view(is_quiet=True)
        return run_plan(plan, folder / "run", view, given=[])


def fake_run(
    path: Path, methods: Mapping[str, Answer], num_prompts: int, view: Progress | None = None,
    **values: Any,
) -> None:  # fmt: skip
    """Run fake methods on prompts of two turns, or resume the run. It takes milliseconds."""
    tasks = {"gsm8k": num_prompts - num_prompts // 2, "alpaca": num_prompts // 2}
    prompts = {
        task: [Prompt(f"{task}/{i}", "", ("one", "two")) for i in range(number)]
        for task, number in tasks.items()
    }
    plan = fake_plan(methods, prompts, RunSpec(**values))
    with patch.object(environment, "capture", lambda: make_header().environment):
        run_plan(plan, path, view or Watcher(), given=("model",), command=("run",))


def check_message(error: UserError) -> None:
    """Check that an error is a short message with a hint."""
    assert error.message and error.hint and len(error.message) < 1000, error.message
    assert "Traceback" not in error.message and "\0" not in error.message, error.message


@cache
def model_folder() -> Path:
    """A small model, saved once per process."""
    return save_checkpoint(Path(tempfile.mkdtemp(prefix="fault-model-")) / "model")


def contents(folder: Path) -> dict[str, bytes]:
    """The content of each file in a folder, by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@cache
def run_folder() -> Path:
    """A small run with everything that a record can have."""
    folder = Path(tempfile.mkdtemp(prefix="fault-run-"))
    methods = {"vanilla": _answer(1), "pld:ngram=2": _answer(3)}
    fake_run(folder, methods, 2, temperatures=(0.0, 1.0))
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
