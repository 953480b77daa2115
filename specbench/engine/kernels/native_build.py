"""Compile `native.c` for this machine, once, and load it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

SOURCE = Path(__file__).with_name("native.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fPIC", "-fopenmp")
LIMIT_S = 120.0

_INT, _LONG, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_long, ctypes.c_float, ctypes.c_void_p
_NORM = (_POINTER, _INT, _FLOAT)
SIGNATURES: dict[str, tuple[type, ...]] = {
    "product": (
        _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER, _LONG, _POINTER, _INT, *_NORM, _INT,
    ),
    "product_each": (
        _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER, _LONG, _POINTER, _INT,
    ),
    "norm_rows": (_POINTER, _POINTER, _LONG, _LONG, _LONG, *_NORM, _INT),
    "write_kv": (
        _POINTER, _LONG, _LONG, _LONG, _LONG, _LONG, _POINTER, _LONG, _POINTER, _POINTER, _LONG,
        *_NORM,
    ),
    "attend": (
        _POINTER, _POINTER, _LONG, _LONG, _LONG, _LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG,
        _POINTER, _LONG, _FLOAT, _INT,
    ),
    "run_layers": (
        _POINTER, _POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _LONG, _POINTER,
        _LONG, _POINTER, _LONG, _INT,
    ),
}  # fmt: skip
"""Functions of the library, and the types of their arguments."""


class BuildError(Exception):
    """The library cannot be made, with the reason."""


def user_folder() -> Path:
    """The user's folder of compiled libraries: `specbench/native` in `$XDG_CACHE_HOME`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "specbench", "native")


def compiler() -> list[str]:
    """The command of the C compiler: `$CC`, or the first of `COMPILERS`.

    Raises:
        BuildError: there is none.
    """
    first, *more = os.environ.get("CC", "").split() or [""]
    names = (first,) if first else COMPILERS
    for name in names:
        if found := shutil.which(name):
            return [found, *more]
    raise BuildError(f"no C compiler is installed (looked for {', '.join(names)})")


def load_library(folder: Path, openmp: Path, *, is_half: bool) -> tuple[ctypes.CDLL, str]:
    """The library for float32, or for bfloat16 if `is_half`, and the version of its compiler.

    It is kept in `folder`, or made anew if that cannot be written. `openmp` is the file of torch's
    own OpenMP, whose threads it uses.

    Raises:
        BuildError: it cannot be compiled or loaded.
    """
    found = compiler()
    about = _output([*found, "--version"])
    versions = re.findall(r"\d+(?:\.\d+)+", about.split("\n", 1)[0])
    version = " ".join([Path(found[0]).name, *versions[-1:]])
    target = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    flags = [*FLAGS, target, f"-DHALF={int(is_half)}"]
    parts = [SOURCE.read_text("utf-8"), about, *found, *flags, str(openmp), _processor()]
    name = f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / name
        if place.is_file():
            with suppress(BuildError):  # damaged: make it anew
                return _loaded(place), version
        _compile(found, flags, openmp, place)
        return _loaded(place), version
    except OSError:  # no room, or not writable
        with tempfile.TemporaryDirectory() as other:
            _compile(found, flags, openmp, Path(other, name))
            return _loaded(Path(other, name)), version


def _compile(compiler: list[str], flags: list[str], openmp: Path, place: Path) -> None:
    """Compile into `place`, which appears only when it is complete."""
    with tempfile.TemporaryDirectory(dir=place.parent) as part:
        code, library = Path(part, "native.o"), Path(part, "native.so")
        _output([*compiler, *flags, "-c", str(SOURCE), "-o", str(code)])
        _output([*compiler, "-shared", str(code), str(openmp), "-o", str(library)])
        library.replace(place)


def _loaded(place: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(place))
        for name, types in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, None
    except (OSError, AttributeError) as error:
        raise BuildError(f"the compiled library does not load ({error})") from error
    return library


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except subprocess.CalledProcessError as error:
        first = next(iter(error.stderr.strip().splitlines()), "no message")
        raise BuildError(f"{command[0]} fails: {first}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} fails: {error}") from error
    return done.stdout


def _processor() -> str:
    """The properties of the processor that `-march=native` depends on."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        kinds = ("model name", "flags", "Features", "CPU part")
        return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
    return platform.processor()
