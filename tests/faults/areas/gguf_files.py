"""Attacks on GGUF files: damage, kills and a full disk while one is converted.

A file is converted, or refused with its path and the reason. An interrupted conversion does not
change the next one.
"""

import os
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

from specbench.errors import UserError
from specbench.models.gguf import gguf_folder
from tests.faults.damage import damaged, replace_file
from tests.faults.limits import file_size_limit
from tests.faults.processes import kill_at_a_write
from tests.faults.program import check_message, contents
from tests.support.gguf_files import write_gguf

TRIES = 100


def attack(random: Random, folder: Path) -> None:
    file = folder / "small.gguf"
    file.write_bytes(_sound()["small.gguf"])
    with patch.dict(os.environ, {"SPECBENCH_CACHE": str(folder / "cache")}):
        random.choice((_damaged, _damaged, _ended))(random, file)
    assert not (folder / "executed").exists(), "code in a file was executed"


def _damaged(random: Random, file: Path) -> None:
    if random.random() < 0.8:
        file.write_bytes(damaged(random, file.read_bytes()))
    else:
        replace_file(random, file)
    try:
        _convert(file)
    except UserError as error:
        check_message(error)
        assert file.stem in error.message, error.message


def _ended(random: Random, file: Path) -> None:
    if random.random() < 0.5:
        kill_at_a_write(random, file.parent, _convert, file)
    else:
        with file_size_limit(random.randrange(400_000)):
            try:
                _convert(file)
            except UserError as error:
                check_message(error)
    assert contents(_convert(file)) == _sound(), "the conversion has changed"


def _convert(file: Path) -> Path:
    return gguf_folder(file, what="The model")


@cache
def _sound() -> dict[str, bytes]:
    """The files of a sound conversion, with the link to the file."""
    folder = Path(tempfile.mkdtemp(prefix="fault-gguf-"))
    write_gguf(folder / "small.gguf")
    with patch.dict(os.environ, {"SPECBENCH_CACHE": str(folder / "cache")}):
        return contents(_convert(folder / "small.gguf"))
