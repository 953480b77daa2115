"""Attacks on files of settings: odd names and values, damage, kills, a full disk.

Reading returns what was written. A damaged file is used, or refused with its path. The
settings that are kept for later runs are the old or the new ones.
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
OLD = SettingsFile({"pld": {"ngram": 2}}, title="old", model="tiny", fits=FITS)
NEW = SettingsFile({"pld": {"num_tokens": 7}}, title="new", model="tiny", fits=FITS)
VALUES: tuple[Any, ...] = ("", "x", -1, 0, 2, 10**30, 0.5, inf, -inf, True, [], [1], {"a": 1})


def attack(random: Random, folder: Path) -> None:
    with patch.dict(os.environ, {"SPECBENCH_CACHE": str(folder / "cache")}):
        random.choice((_odd_names, _odd_values, _damaged, _kept))(random, folder)


def _name(random: Random) -> str:
    name = "".join(random.sample((*FRAGMENTS, "\N{GRINNING FACE}", "\x00", '"', "."), 3))
    return name.encode(errors="ignore").decode()


def _odd_names(random: Random, folder: Path) -> None:
    names = [_name(random) for _ in range(4)]
    options = {names[0]: random.choice((names[1], 1.5, inf, True, [names[2]]))}
    file = SettingsFile({names[2]: options}, title=names[3], model=names[1], weights={names[0]: ""})
    (folder / "settings.toml").write_bytes(toml_text(file).encode())
    assert read_toml(folder / "settings.toml", SettingsFile, what="Settings", hint="") == file


def _odd_values(random: Random, folder: Path) -> None:
    options: dict[str, Any] = {}
    for _ in range(2):
        option = random.choice(("ngram", "num_tokens", "nope", "weights"))
        options[option] = random.choice(VALUES)
    method = random.choice(("pld", "medusa", "nope"))
    _use(folder, toml_text(SettingsFile({method: options})))


def _damaged(random: Random, folder: Path) -> None:
    _use(folder, damage.damaged(random, toml_text(NEW).encode()))


def _use(folder: Path, content: str | bytes) -> None:
    """Read the settings as a file of the user, and as the settings of a tune."""
    content = content.encode() if isinstance(content, str) else content
    path = folder / "settings.toml"
    path.write_bytes(content)
    keep_settings(NEW).write_bytes(content)
    methods = parse_methods(["pld", "pld:ngram=3"])
    for use in (
        lambda: read_settings(str(path), "tiny").of(methods),
        lambda: with_tuned(methods, "tiny", "0", lambda: FITS),
    ):
        try:
            use()
        except UserError as error:
            check_message(error)


def _kept(random: Random, folder: Path) -> None:
    """Keep other settings until a kill or a full disk, then once more."""
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
    assert [file.read_text() for file in path.parent.iterdir()] == [toml_text(NEW)], "litter"
