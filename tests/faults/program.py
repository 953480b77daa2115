"""The command line, run in this process, with checks that every command must pass."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import chdir
from dataclasses import dataclass
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from unittest.mock import patch

from specbench.cli import main
from tests.support.checkpoint import save_checkpoint


@dataclass(frozen=True, slots=True)
class Said:
    """Exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str


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


@cache
def model_folder() -> Path:
    """A small model, saved once a process."""
    folder = Path(tempfile.mkdtemp(prefix="fault-model-"))
    return save_checkpoint(folder / "model")
