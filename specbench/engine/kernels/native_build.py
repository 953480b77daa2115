"""Compile `native.c` for this machine, once, and load it."""

import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specbench.errors import first_line, printable

SOURCE = Path(__file__).with_name("native.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fPIC", "-fopenmp")
LIMIT_S = 120.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_TYPES = {"i": ctypes.c_int, "l": ctypes.c_long, "f": ctypes.c_float, "p": ctypes.c_void_p}
SIGNATURES = {
    "product": "pplllplpi pif i",
    "product_each": "pplllplpi",
    "norm_rows": "pplll pif i",
    "write_kv": "plllllplppl pif",
    "attend": "pplllllppllplfi",
    "run_layers": "pplpllplpplplpli",
    "best_tokens": "pllllppi",
    "draft_levels": "pplllpppppi",
}
"""Functions of the library, and the types of their arguments; `pif` is a norm."""


class BuildError(Exception):
    """The library cannot be made, with the reason."""


def user_folder() -> Path:
    """The user's folder of compiled libraries: `specbench/native` in `$XDG_CACHE_HOME`.

    A relative path there is ignored, as the XDG specification asks, and so is a missing home.
    """
    own = Path(tempfile.gettempdir(), f"specbench-{os.geteuid()}")
    cache, home = (Path(os.environ.get(name, "")) for name in ("XDG_CACHE_HOME", "HOME"))
    places = (place for place in (cache, home / ".cache", own) if place.is_absolute())
    return next(places) / "specbench" / "native"


def compiler() -> list[str]:
    """The command of the C compiler: `$CC`, or the first of `COMPILERS`.

    Raises:
        BuildError: no C compiler is found.
    """
    first, *more = os.environ.get("CC", "").split() or [""]
    names = (first,) if first else COMPILERS
    for name in names:
        if found := shutil.which(name):
            return [found, *more]
    raise BuildError(f"no C compiler is installed (looked for {printable(', '.join(names))})")


def load_library(folder: Path, openmp: Path, *, is_half: bool) -> tuple[ctypes.CDLL, str]:
    """The library for float32, or for bfloat16 if `is_half`, and the version of its compiler.

    It is kept in `folder` under its hash, and made anew if it is damaged, or if others own it
    or can write to it. A folder that is not the user's own is not used. `openmp` is the file
    of torch's own OpenMP, whose threads it uses.

    Raises:
        BuildError: it cannot be compiled, written or loaded.
    """
    found = compiler()
    about = _output([*found, "--version"])
    versions = re.findall(r"\d+(?:\.\d+)+", about.split("\n", 1)[0])
    version = first_line(" ".join([Path(found[0]).name, *versions[-1:]]))
    target = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    flags = [*FLAGS, target, f"-DHALF={int(is_half)}"]
    parts = [SOURCE.read_text("utf-8"), about, *found, *flags, str(openmp), _processor()]
    name = _digest(chr(0).join(parts).encode(errors="surrogateescape"))
    try:
        _take(folder)
        for place in folder.glob(f"{name}-*.so"):
            if _is_whole(place):
                with suppress(BuildError):
                    return _loaded(place), version
            place.unlink(missing_ok=True)
        with _alone(folder):
            return _compiled(found, flags, openmp, folder, name), version
    except OSError:  # no room, not writable, not the user's, or another process compiles there
        try:
            with tempfile.TemporaryDirectory() as other:
                return _compiled(found, flags, openmp, Path(other), name), version
        except OSError as error:
            raise BuildError(f"the compiled library cannot be written ({error})") from error


def _take(folder: Path) -> None:
    """Make the folder the user's alone, without what others could have put there.

    Raises:
        OSError: it belongs to somebody else, who could exchange it, or it cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    above = (one.stat().st_mode for one in folder.resolve().parents)
    is_open = any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in above)
    if about.st_uid != os.geteuid() or is_open:
        raise PermissionError(f"{folder} belongs to others, too")
    if about.st_mode & _OTHERS_WRITE:
        folder.chmod(0o700)
        for library in folder.glob("*.so"):
            library.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from compiling in the folder, and remove what a killed one left.

    Raises:
        OSError: another process compiles there.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for build in folder.glob("build-*"):
            shutil.rmtree(build, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def _is_whole(place: Path) -> bool:
    """True if a library is the user's own file and has the hash that its name says."""
    with suppress(OSError):
        about = place.lstat()
        is_own = about.st_uid == os.geteuid() and not about.st_mode & _OTHERS_WRITE
        if is_own and stat.S_ISREG(about.st_mode):
            return place.stem.rpartition("-")[2] == _digest(place.read_bytes())
    return False


def _compiled(
    compiler: list[str], flags: list[str], openmp: Path, folder: Path, name: str
) -> ctypes.CDLL:
    """Compile and load. The library appears in `folder` when it is complete and on the disk."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as part:
        code, made = Path(part, "native.o"), Path(part, "native.so")
        _output([*compiler, *flags, "-c", str(SOURCE), "-o", str(code)])
        _output([*compiler, "-shared", str(code), str(openmp), "-o", str(made)])
        with made.open("rb") as file:
            os.fsync(file.fileno())
            digest = _digest(file.read())
        library = _loaded(made)
        made.chmod(0o700)
        made.replace(folder / f"{name}-{digest}.so")
    return library


def _loaded(place: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(place))
        for name, types in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = [_TYPES[one] for one in types if one != " "]
            function.restype = None
    except (OSError, AttributeError) as error:
        raise BuildError(f"the compiled library does not load ({error})") from error
    return library


def _output(command: list[str]) -> str:
    what = printable(command[0])
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        said = first_line(error.stderr.decode(errors="replace"))
        ended = f"signal {-error.returncode} ended it" if error.returncode < 0 else "no message"
        raise BuildError(f"{what} fails: {said or ended}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{what} fails: {printable(str(error))}") from error
    return done.stdout.decode(errors="replace")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _processor() -> str:
    """The properties of the processor that `-march=native` depends on."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        kinds = ("model name", "flags", "Features", "CPU part")
        return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
    return platform.processor()
