"""Python and specbench in separate processes, as in a user's shell."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def run(
    command: Sequence[str | Path], cwd: Path, *, path: Sequence[Path] = (), timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command with `path` as its PYTHONPATH, without a network and with one thread."""
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    env = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output(
    command: Sequence[str | Path], cwd: Path, *, path: Sequence[Path] = (), timeout: float = 120
) -> str:
    """The stdout of a command that must succeed."""
    done = run(command, cwd, path=path, timeout=timeout)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def python(code: str, cwd: Path, *, path: Sequence[Path] = ()) -> str:
    """The stdout of Python code."""
    return output([sys.executable, "-c", code], cwd, path=path).strip()


def where(
    cwd: Path, *, path: Sequence[Path] = (), python: str | Path = sys.executable
) -> tuple[Path, Path]:
    """The files of the package and of one method; torch is not imported."""
    code = """
from importlib.util import find_spec
print(find_spec("specbench").origin)
print(find_spec("specbench.methods.pld").origin)
"""
    package, method = output([python, "-c", code], cwd, path=path).splitlines()
    return Path(package), Path(method)


def pip_install(*what: str | Path, cwd: Path, into: Sequence[str | Path] = ()) -> None:
    """Install without dependencies and without a network. `into` are options of pip."""
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    output([sys.executable, "-m", "pip", *into, "install", *offline, *what], cwd)
