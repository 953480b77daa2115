"""The mean accepted tokens (MAT) of methods with many settings. The package ships them.

`tools/zoo/acceptance.py` makes a file per known model. `--settings auto` divides the times of steps
by these numbers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from specbench.log.model import FileHeader

FOLDER = Path(__file__).parent / "accepted"
"""The folder of the files."""


class Acceptance(msgspec.Struct, frozen=True):
    """The acceptance that a method had with some settings."""

    options: dict[str, Any]
    """The options that the settings change. All other options have the paper's values."""
    rows: float
    """The mean number of rows that a step computes."""
    mat: float
    """The mean accepted tokens."""


class AcceptanceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shipped acceptance of a model's methods."""

    model: str
    """The name of the model."""
    prompts: str
    """A description of the prompts that the methods answered."""
    weights: dict[str, str]
    """The hash (sha256) of weights, under "target" or the kind of draft weights."""
    methods: dict[str, tuple[Acceptance, ...]]
    """The settings that were tried with each method, beginning with the paper's.

    The key is the name of the method. If an option is part of the method, the key includes it, such
    as "sam:other=eagle3".
    """

    def of(
        self, method: str, kind: str | None, files: Mapping[str, FileHeader]
    ) -> tuple[Acceptance, ...]:
        """Return the settings that were tried with a method, or nothing if it has other weights.

        `kind` is the kind of draft weights that the method needs (None if it needs none), `files`
        are the files of its weights.
        """
        hashes = {file.sha256 for file in files.values()}
        if kind is not None and self.weights.get(kind) not in hashes:
            return ()
        return self.methods.get(method, ())


def find_acceptance(model: str, files: Mapping[str, FileHeader]) -> AcceptanceFile | None:
    """Find the shipped file of a model by its name; None if it is not for these weights."""
    path = FOLDER / f"{model}.json"
    if not path.is_file():
        return None
    acceptance = msgspec.json.decode(path.read_bytes(), type=AcceptanceFile)
    hashes = {file.sha256 for file in files.values()}
    return acceptance if acceptance.weights["target"] in hashes else None
