"""Attacks on the cache of compiled code: damage, kills, a full disk.

The compiled operations are used. If the disk is full, torch's may be used, and the reason is given.
Each attack runs in its own process, because a truncated library would end the process.
"""

import json
import os
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import torch

from specbench.engine.kernels.native_build import compiler
from specbench.engine.kernels.pick_ops import pick_native_ops
from tests.faults.damage import damaged, replace_file
from tests.faults.limits import file_size_limit
from tests.faults.processes import end, finish, start

TRIES = 150
COMPILER = """#!/bin/sh
test $1 = --version && {{ echo cc 1.2; exit; }}
for last; do :; done
exec cp {library} "$last"
"""


def attack(random: Random, folder: Path) -> None:
    kept, scratch = folder / "kept", folder / "scratch"
    kept.mkdir(mode=0o700)
    scratch.mkdir()
    limit = random.randrange(100_000) if random.random() < 0.3 else -1
    if random.random() < 0.4:
        library = Path(shutil.copy2(_made_by(_compiler()), kept))
        if random.random() < 0.8:
            library.write_bytes(damaged(random, library.read_bytes()))
        else:
            replace_file(random, library)
    if random.random() < 0.5:
        process = start(_pick, folder, _compiler(), -1)
        end(process, signal.SIGKILL, None, random.uniform(0, 0.3))
        for leftover in scratch.iterdir():  # in the system's folder, not in ours
            shutil.rmtree(leftover, ignore_errors=True)
    finish(start(_pick, folder, _compiler(), limit))
    name, reason = json.loads((folder / "picked").read_text())
    assert name.startswith("native code (") or (limit >= 0 and reason.isprintable()), (name, reason)
    left = [*folder.rglob("build-*")] if limit < 0 else []
    assert not left and not [*scratch.iterdir()], "files are left behind"


def _pick(folder: Path, cc: Path, limit: int) -> None:
    tempfile.tempdir = str(folder / "scratch")
    os.environ["CC"] = str(cc)
    if limit < 0:
        picked = pick_native_ops(torch.float32, folder / "kept")
    else:
        with file_size_limit(limit):
            picked = pick_native_ops(torch.float32, folder / "kept")
    (folder / "picked").write_text(json.dumps([picked.name, getattr(picked, "reason", None)]))


@cache
def _compiler() -> Path:
    """A quick compiler. All attacks share it, since a library depends on its path."""
    place = Path(tempfile.mkdtemp(prefix="fault-native-"), "cc")
    place.write_text(COMPILER.format(library=_made_by(Path(compiler()[0]))))
    place.chmod(0o755)
    return place


@cache
def _made_by(cc: Path) -> Path:
    """A sound library of this compiler."""
    folder = Path(tempfile.mkdtemp(prefix="fault-native-"))
    with patch.dict(os.environ, {"CC": str(cc)}):
        assert pick_native_ops(torch.float32, folder).name != "torch"
    (library,) = folder.glob("*.so")
    return library
