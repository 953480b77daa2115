"""Attacks on files of settings: odd names and values, damage, kills, a full disk.

Odd names and values are read as they were written. A damaged file is used, or refused in one
message. After an interruption, a file has either the old settings or the new ones.
"""

import os
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from specbench.data.toml_files import read_toml
from specbench.errors import RunFolderError, UserError
from specbench.settings.files import SettingsFile, read_settings, toml_text
from specbench.settings.tuned_settings import keep_settings, with_tuned
from tests.faults import damage
from tests.faults.areas.injection import FRAGMENTS
from tests.faults.limits import file_size_limit
from tests.faults.processes import kill_at_a_write
from tests.faults.program import check_message
from tests.support.methods import parse_methods

TRIES = 500
FITS = {"temperature": "0", "machine": "this"}
"""The machine and the runs that the settings fit."""
OLD = SettingsFile({"pld": {"ngram": 2}}, title="old", model="tiny", fits=FITS)
NEW = SettingsFile({"pld": {"num_tokens": 7}}, title="new", model="tiny", fits=FITS)
ODD: tuple[Any, ...] = ("", "x", -1, 0, 2, 10**30, 0.5, inf, -inf, True, [], [1], {"a": 1})
"""Values of an option."""


def attack(random: Random, folder: Path) -> None:
    attacks = (_write_odd_names, _write_odd_values, _damage, _interrupt_keeping)
    with patch.dict(os.environ, {"SPECBENCH_CACHE": str(folder / "cache")}):
        random.choice(attacks)(random, folder)


def _odd_name(random: Random) -> str:
    name = "".join(random.sample((*FRAGMENTS, "\N{GRINNING FACE}", "\x00", '"', "."), 3))
    return name.encode(errors="ignore").decode()


def _write_odd_names(random: Random, folder: Path) -> None:
    """Write settings with odd names, and read them back."""
    option, model, method, title = (_odd_name(random) for _ in range(4))
    options = {option: random.choice((model, 1.5, inf, True, [method]))}
    file = SettingsFile({method: options}, title=title, model=model, weights={option: ""})
    path = folder / "settings.toml"
    path.write_bytes(toml_text(file).encode())
    assert read_toml(path, SettingsFile, what="Settings", hint="") == file


def _write_odd_values(random: Random, folder: Path) -> None:
    """Use a file with odd values of two options."""
    options: dict[str, Any] = {}
    for _ in range(2):
        option = random.choice(("ngram", "num_tokens", "nope", "weights"))
        options[option] = random.choice(ODD)
    method = random.choice(("pld", "medusa", "nope"))
    _use(folder, toml_text(SettingsFile({method: options})).encode())


def _damage(random: Random, folder: Path) -> None:
    """Use a damaged file."""
    _use(folder, damage.damaged(random, toml_text(NEW).encode()))


def _use(folder: Path, content: bytes) -> None:
    """Read a file with this content as the user's settings, and as settings kept by a tune."""
    path = folder / "settings.toml"
    path.write_bytes(content)
    keep_settings(NEW).write_bytes(content)
    methods = parse_methods(["pld", "pld:ngram=3"])
    for read in (
        lambda: read_settings(str(path), "tiny").of(methods),
        lambda: with_tuned(methods, "tiny", "0", lambda: FITS),
    ):
        try:
            read()
        except UserError as error:
            check_message(error)


def _interrupt_keeping(random: Random, folder: Path) -> None:
    """Replace kept settings until a kill or a full disk, then replace them without interruption."""
    path = keep_settings(OLD)
    if random.random() < 0.5:
        kill_at_a_write(random, folder, keep_settings, NEW)
    else:
        with file_size_limit(random.randrange(200)):
            try:
                keep_settings(NEW)
            except RunFolderError as error:
                assert str(path) in error.message, error.message
    assert read_toml(path, SettingsFile, what="Settings", hint="") in (OLD, NEW)
    keep_settings(NEW)
    assert [file.read_text() for file in path.parent.iterdir()] == [toml_text(NEW)], (
        "files are left behind"
    )
