"""Mean accepted tokens (MAT) of methods with settings of many sizes, in a file per known model.

`--settings auto` divides times of steps by them. `tools/zoo/acceptance.py` makes the files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from specbench.log.model import FileHeader

FOLDER = Path(__file__).parent / "accepted"
"""A file per known model."""


class Acceptance(msgspec.Struct, frozen=True):
    """The acceptance of a method with some settings."""

    options: dict[str, Any]
    """Options of the settings; all other options are the paper's."""
    rows: float
    """Mean rows of a step."""
    mat: float
    """Mean accepted tokens."""


class AcceptanceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shipped acceptance of a model's methods."""

    model: str
    """Name of the model."""
    prompts: str
    """Description of the prompts that the methods answered."""
    weights: dict[str, str]
    """The sha256 of tensors, by "target" or by the kind of draft weights."""
    methods: dict[str, tuple[Acceptance, ...]]
    """The settings of each method that were tried, the paper's first.

    A key may have an option that is part of the method: "sam:other=eagle3".
    """

    def of(
        self, method: str, kind: str | None, files: Mapping[str, FileHeader]
    ) -> tuple[Acceptance, ...]:
        """A method's settings if its weights, of this kind, are these files; otherwise none."""
        hashes = {file.sha256 for file in files.values()}
        if kind is not None and self.weights.get(kind) not in hashes:
            return ()
        return self.methods.get(method, ())


def find_acceptance(model: str, files: Mapping[str, FileHeader]) -> AcceptanceFile | None:
    """The file of a model by its name; None if there is no file for these weights."""
    path = FOLDER / f"{model}.json"
    if not path.is_file():
        return None
    acceptance = msgspec.json.decode(path.read_bytes(), type=AcceptanceFile)
    hashes = {file.sha256 for file in files.values()}
    return acceptance if acceptance.weights["target"] in hashes else None
