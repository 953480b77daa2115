"""Mean accepted tokens of methods with settings of many sizes, as files of known models.

`--settings auto` multiplies them with times of steps. `tools/zoo/acceptance.py` makes the files.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from specbench.log.model import FileHeader

FOLDER = Path(__file__).parent / "accepted"


class Acceptance(Struct, frozen=True):
    """Mean rows of a step and mean accepted tokens with these options; the rest is the paper's."""

    options: dict[str, Any]
    rows: float
    mat: float


class AcceptanceFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of each method that were tried, the paper's first.

    `weights` maps "target" and kinds of draft weights to the sha256 of their tensors.
    """

    model: str
    prompts: str
    weights: dict[str, str]
    methods: dict[str, tuple[Acceptance, ...]]

    def of(
        self, method: str, kind: str | None, files: dict[str, FileHeader]
    ) -> tuple[Acceptance, ...]:
        """The settings of a method whose weights, of a kind, are these files; none for others."""
        hashes = {one.sha256 for one in files.values()}
        is_known = kind is None or self.weights.get(kind) in hashes
        return self.methods.get(method, ()) if is_known else ()


def find_acceptance(model: str, files: dict[str, FileHeader]) -> AcceptanceFile | None:
    """The file of a model by its name; None without one for these weights."""
    path = FOLDER / f"{model}.json"
    if not path.is_file():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=AcceptanceFile)
    is_same = found.weights["target"] in {one.sha256 for one in files.values()}
    return found if is_same else None
