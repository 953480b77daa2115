"""Attacks on the cache of compiled code: damage, other owners, bad compilers, kills, a full disk.

The operations are the compiled ones or torch's, with a reason, and right in both cases. Each
attack runs in a process of its own, which half a library would end.
"""

from __future__ import annotations

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
from tests.faults.limits import file_size_limit
from tests.faults.processes import end, finish, start

TRIES = 200
COMPILER = """#!/bin/sh
test $1 = --version && {{ printf '{version}'; exit; }}
for last; do :; done
case " $* " in *" -shared "*) ;; *) touch "$last"; exit ;; esac
{link}
"""
VERSIONS = ("cc 1.2\\n", "cc \\377\\376 1.2\\n", "", "\\033[31mcc 9\\n", "cc\\n1.2\\n" * 99)
LINKS = (
    "exit 1", "echo why >&2; exit 3", "printf '\\377\\033[2J\\nwhy' >&2; exit 1", "kill -9 $$",
    "exit 0", 'echo half > "$last"', 'head -c {half} {library} > "$last"; exit 0', 'mkdir "$last"',
    'ln -s gone "$last"', "kill -SEGV $$", "cat; exit 1",
)  # fmt: skip


def attack(random: Random, folder: Path) -> None:
    kept = folder / "cache" / "specbench" / "native"
    kept.mkdir(parents=True, mode=0o700)
    shutil.copy2(_kept(), kept)
    is_bad_compiler = random.random() < 0.3
    limit = random.randrange(100_000) if random.random() < 0.2 else -1
    if is_bad_compiler or limit >= 0 or random.random() < 0.2:
        shutil.rmtree(kept)  # it has to be compiled
    else:
        _damage(random, kept)
    link = f'exec cp {_whole()} "$last"'
    if is_bad_compiler:
        half = random.randrange(_whole().stat().st_size)
        link = random.choice(LINKS).format(half=half, library=_whole())
    if random.random() < 0.1:
        link = f"sleep 0.2; {link}"
    version = VERSIONS[0] if any(kept.glob("*.so")) else random.choice(VERSIONS)
    _compiler().write_text(COMPILER.format(version=version, link=link))
    _kill_or_wait(random, folder, limit)
    left = [one for one in folder.rglob("build-*") if limit < 0]
    picked = json.loads((folder / "picked").read_text())
    assert picked["name"] == "torch" or picked["name"].startswith("native code ("), picked
    assert picked["name"] != "torch" or picked["reason"].isprintable(), picked
    if not is_bad_compiler and limit < 0:
        assert picked["name"] != "torch", picked
    assert not left and not [*(folder / "scratch").iterdir()], "litter"


def _kill_or_wait(random: Random, folder: Path, limit: int) -> None:
    """Pick the operations in a process that may be killed the first time."""
    (folder / "scratch").mkdir()
    if random.random() < 0.2:
        process = start(_pick, folder, _compiler(), -1)
        end(process, signal.SIGKILL, None, random.uniform(0, 0.3))
        for one in (folder / "scratch").iterdir():  # of the system's folder, not ours
            shutil.rmtree(one, ignore_errors=True)
    finish(_pick, folder, _compiler(), limit)


def _pick(folder: Path, cc: Path, limit: int) -> None:
    os.environ["CC"] = str(cc)
    tempfile.tempdir = str(folder / "scratch")
    kept = folder / "cache" / "specbench" / "native"
    if limit < 0:
        picked = pick_native_ops(torch.float32, kept)
    else:
        with file_size_limit(limit):
            picked = pick_native_ops(torch.float32, kept)
    about = {"name": picked.name, "reason": getattr(picked, "reason", None)}
    (folder / "picked").write_text(json.dumps(about))


def _damage(random: Random, kept: Path) -> None:
    """Change the one library, its rights, or those of its folder."""
    (library,) = kept.iterdir()
    content = bytearray(library.read_bytes())
    how = random.randrange(8)
    if how == 0:
        library.write_bytes(content[: random.randrange(len(content))])
    elif how == 1:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        library.write_bytes(content)
    elif how == 2:
        library.write_bytes(random.randbytes(random.randrange(9999)))
    elif how == 3:
        library.unlink()
        random.choice((library.mkdir, lambda: os.mkfifo(library)))()
    elif how == 4:
        library.rename(kept.parent / "elsewhere.so")
        library.symlink_to(kept.parent / "elsewhere.so")
    elif how == 5:
        library.chmod(random.choice((0o777, 0o622, 0o602)))
    elif how == 6:
        kept.chmod(random.choice((0o777, 0o770, 0o1777)))
    else:
        (kept / "build-old").mkdir()
        (kept / "build-old" / "native.o").write_bytes(b"half")
        library.unlink()


@cache
def _whole() -> Path:
    """A sound library."""
    return _made_by(Path(compiler()[0]))


@cache
def _compiler() -> Path:
    """The compiler of all attacks, since a library belongs to its path; each writes it anew."""
    place = Path(tempfile.mkdtemp(prefix="fault-native-"), "cc")
    place.write_text(COMPILER.format(version=VERSIONS[0], link=f'exec cp {_whole()} "$last"'))
    place.chmod(0o755)
    return place


@cache
def _kept() -> Path:
    """The library in the cache before an attack."""
    return _made_by(_compiler())


def _made_by(cc: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fault-native-"))
    with patch.dict(os.environ, {"CC": str(cc)}):
        assert pick_native_ops(torch.float32, folder).name != "torch"
    (library,) = folder.glob("*.so")
    return library
