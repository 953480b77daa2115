"""Attacks on a tune: files that are damaged or made by hand, kills, a full disk.

A repeated command continues the tune, or names the fault. The choice is printed before it is
stored.
"""

import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

from specbench.settings import grids
from tests.cli.conftest import Said
from tests.faults import damage
from tests.faults.areas.mutated_files import changed_value
from tests.faults.limits import file_size_limit
from tests.faults.processes import kill_at_a_write
from tests.faults.program import specbench

TRIES = 80
FILES = (
    "profile/profile.json",
    "profile/profile.npz",
    "cost/cost.json",
    "cost/cost.json",
    "run/run.json",
    "run/samples.jsonl",
    "settings.toml",
    "predictions.csv",
)


def attack(random: Random, folder: Path) -> None:
    for name in ("tune", "cache"):
        shutil.copytree(_finished() / name, folder / name)
    random.choice((_damaged, _damaged, _ended))(random, folder)


def _damaged(random: Random, folder: Path) -> None:
    file = folder / "tune" / random.choice(FILES)
    if random.random() < 0.1:
        damage.replace_file(random, file)
        if file.is_fifo():
            file.unlink()
    else:
        change = changed_value if file.suffix in (".json", ".jsonl") else damage.damaged
        file.write_bytes(change(random, file.read_bytes()))
    if (said := _again(folder)).code:
        assert "tune" in said.err, said.err
    assert not (folder / "executed").exists(), "code in a file was executed"


def _ended(random: Random, folder: Path) -> None:
    """End a repeated command by a kill or a full disk. Then repeat it to its end."""
    for name in ("settings.toml", "run", "cost")[: random.randint(1, 3)]:
        path = folder / "tune" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if random.random() < 0.5:
        kill_at_a_write(random, folder, _again, folder)
    else:
        with file_size_limit(random.randrange(30_000)):
            said = _again(folder)
        assert not said.code or "cannot be written" in said.err, said.err
        assert "stdout" not in said.err and "--resume" not in said.err, said.err
    said = _again(folder)
    assert said.code == 0 and said.out.startswith("pld"), said
    assert not [*folder.rglob("*.new")], "files are left behind"


def _again(folder: Path) -> Said:
    call = ("--method", "pld", "--dataset", "gsm8k", "--limit", "2", "--max-new-tokens", "8")
    with patch.object(grids, "STEP_ROWS", (1, 2, 8, 65)):
        return specbench(
            "tune",
            *call,
            "--threads",
            "1",
            "--minutes",
            "0.1",
            "--out",
            "tune",
            folder=folder,
            XDG_CACHE_HOME=str(folder / "cache"),
            SPECBENCH_CACHE=str(folder / "cache" / "specbench"),
        )


@cache
def _finished() -> Path:
    """A finished tune and its cache, made once per process."""
    folder = Path(tempfile.mkdtemp(prefix="fault-tune-"))
    assert _again(folder).code == 0
    return folder
