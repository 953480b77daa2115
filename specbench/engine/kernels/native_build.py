"""Compile `native.c` once for this machine, and load it."""

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
TIMEOUT_S = 120.0
"""Time limit of a call of the compiler, in seconds."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""Bits of a file's mode that let other users write to it."""

_TYPES = {"i": ctypes.c_int, "l": ctypes.c_long, "f": ctypes.c_float, "p": ctypes.c_void_p}
"""The types of arguments, by their letters in `SIGNATURES`."""
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
"""Functions of the library, and the types of their arguments. `pif` stands for a norm."""


class BuildError(Exception):
    """The library cannot be made. The message has the reason."""


def user_folder() -> Path:
    """The user's folder of compiled libraries: `specbench/native` in `$XDG_CACHE_HOME`.

    A relative path in this variable is ignored, as the XDG specification demands. A missing home is
    ignored too.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home_cache = Path(os.environ.get("HOME", "")) / ".cache"
    temporary = Path(tempfile.gettempdir(), f"specbench-{os.geteuid()}")
    folder = next((path for path in (cache, home_cache) if path.is_absolute()), temporary)
    return folder / "specbench" / "native"


def compiler() -> list[str]:
    """The command of the C compiler: `$CC`, or the first of `COMPILERS`.

    Raises:
        BuildError: no C compiler is found.
    """
    requested = os.environ.get("CC", "").split()
    names = requested[:1] or COMPILERS
    for name in names:
        if path := shutil.which(name):
            return [path, *requested[1:]]
    raise BuildError(f"no C compiler is installed (looked for {printable(', '.join(names))})")


def load_library(folder: Path, openmp: Path, *, is_half: bool) -> tuple[ctypes.CDLL, str]:
    """The library for float32, or for bfloat16 if `is_half`, and the version of its compiler.

    The library is kept in `folder` under its hash. It is compiled again if it is damaged, or if
    other users own it or can write to it. A folder that is not the user's own is not used. `openmp`
    is the file of torch's own OpenMP, whose threads the library uses.

    Raises:
        BuildError: the library cannot be compiled, written or loaded.
    """
    command = compiler()
    version_text = _output([*command, "--version"])
    versions = re.findall(r"\d+(?:\.\d+)+", version_text.split("\n", 1)[0])
    version = first_line(" ".join([Path(command[0]).name, *versions[-1:]]))
    target = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    flags = [*FLAGS, target, f"-DHALF={int(is_half)}"]
    source = SOURCE.read_text("utf-8")
    inputs = [source, version_text, *command, *flags, str(openmp), _processor()]
    name = _digest(chr(0).join(inputs).encode(errors="surrogateescape"))
    try:
        _secure(folder)
        for path in folder.glob(f"{name}-*.so"):
            if _is_whole(path):
                with suppress(BuildError):
                    return _loaded(path), version
            path.unlink(missing_ok=True)
        with _locked(folder):
            return _compiled(command, flags, openmp, folder, name), version
    except OSError:  # no room, not writable, not the user's, or another process compiles there
        try:
            with tempfile.TemporaryDirectory() as temporary:
                return _compiled(command, flags, openmp, Path(temporary), name), version
        except OSError as error:
            raise BuildError(f"the compiled library cannot be written ({error})") from error


def _secure(folder: Path) -> None:
    """Make a folder that only the user can write to. Remove libraries that others may have written.

    Raises:
        OSError: the folder cannot be written, or others can exchange it or own it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    parent_modes = [parent.stat().st_mode for parent in folder.resolve().parents]
    # Others can rename a folder if everybody can write to its parent and no sticky bit forbids it.
    is_open = any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in parent_modes)
    if status.st_uid != os.geteuid() or is_open:
        raise PermissionError(f"other users can change {folder}")
    if status.st_mode & _OTHERS_WRITE:
        folder.chmod(0o700)
        for library in folder.glob("*.so"):
            library.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from compiling in the folder. Remove what killed processes have left.

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


def _is_whole(library: Path) -> bool:
    """True if a library is the user's own file and has the hash that its name ends with."""
    with suppress(OSError):
        status = library.lstat()
        is_owned = status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE
        if is_owned and stat.S_ISREG(status.st_mode):
            digest = library.stem.rpartition("-")[2]
            return digest == _digest(library.read_bytes())
    return False


def _compiled(
    compiler: list[str], flags: list[str], openmp: Path, folder: Path, name: str
) -> ctypes.CDLL:
    """Compile and load the library. It appears in `folder` when it is whole and on the disk."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as build:
        object_file = Path(build, "native.o")
        shared_file = Path(build, "native.so")
        _output([*compiler, *flags, "-c", str(SOURCE), "-o", str(object_file)])
        _output([*compiler, "-shared", str(object_file), str(openmp), "-o", str(shared_file)])
        with shared_file.open("rb") as file:
            os.fsync(file.fileno())
            digest = _digest(file.read())
        library = _loaded(shared_file)
        shared_file.chmod(0o700)
        shared_file.replace(folder / f"{name}-{digest}.so")
    return library


def _loaded(path: Path) -> ctypes.CDLL:
    """Load the library in a file, and set the types of its functions' arguments."""
    try:
        library = ctypes.CDLL(str(path))
        for name, letters in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = [_TYPES[letter] for letter in letters if letter != " "]
            function.restype = None
    except (OSError, AttributeError) as error:
        raise BuildError(f"the compiled library does not load ({error})") from error
    return library


def _output(command: list[str]) -> str:
    """The output of a command. If it fails, BuildError has the first line of its message."""
    program = printable(command[0])
    try:
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        reason = first_line(error.stderr.decode(errors="replace"))
        if not reason and error.returncode < 0:
            reason = f"signal {-error.returncode} ended it"
        raise BuildError(f"{program} fails: {reason or 'no message'}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{program} fails: {printable(str(error))}") from error
    return completed.stdout.decode(errors="replace")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _processor() -> str:
    """The properties of the processor that `-march=native` depends on."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        fields = ("model name", "flags", "Features", "CPU part")
        return "\n".join(sorted({line for line in lines if line.startswith(fields)}))
    return platform.processor()
