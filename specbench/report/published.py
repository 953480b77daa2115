"""Read numbers from papers and leaderboards, as printed there, to show them beside ours. Only
`compare --explain` computes with them.

A publication is a TOML file (with source, settings, the meaning of columns, and tables with their
hardware) and a CSV file of the same name with the values. The files are in `results/published`,
which is beside the package in a checkout, and inside it in a wheel. An installation without that
folder has no published numbers, which is not an error.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from specbench.errors import UserError
from specbench.types import ROOTS

SAME_PROMPTS = {"mt_bench": "spec_bench/mt_bench"}
"""Tasks of ours whose exact prompts are also a task of another suite, by our names."""


class PublishedTable(Struct, frozen=True):
    """A table of a publication."""

    title: str
    """Its caption."""
    hardware: str
    """The hardware, or the words "not stated"."""

    @property
    def known_hardware(self) -> str:
        """The hardware; empty if the publication does not state it."""
        return "" if self.hardware.startswith("not ") else self.hardware


class Publication(Struct, frozen=True, kw_only=True):
    """Source of published numbers."""

    key: str = ""
    """The name of its file."""
    name: str
    """Its short name: "Spec-Bench"."""
    title: str
    """Title of the paper or page."""
    authors: str = ""
    """The authors as printed there; empty for imported tables."""
    year: int = 0
    """Year of publication; 0 for imported tables."""
    url: str = ""
    """Its address; empty for imported tables."""
    files: dict[str, str] = {}
    """Files from which an imported table was made, with their hashes."""
    settings: str
    """The conditions of the measurement."""
    columns: dict[str, str]
    """The meaning of the columns."""
    table: dict[str, PublishedTable]
    """Its tables, by the name that the CSV file uses."""


class PublishedValue(Struct, frozen=True):
    """One cell of a published table."""

    publication: Publication
    """The source."""
    table: PublishedTable
    """The table."""
    model: str
    """specbench's name of the model."""
    method: str
    """specbench's name of the method, without options."""
    task: str
    """specbench's name of the task. "mean" is the publication's mean over its tasks. The name of a
    suite ("spec_bench") stands for all questions of the suite together.
    """
    temperature: float
    """Sampling temperature."""
    speedup: float | None = None
    """Speedup over the publication's baseline; absent if not published."""
    mat: float | None = field(default=None, name="mean_accepted_tokens")
    """Mean accepted tokens; absent if not published, like all fields below."""
    tokens_per_s: float | None = None
    """Tokens per second."""
    load: float | None = None
    """Requests at once."""
    num_draft_tokens: float | None = None
    """Draft tokens per step."""
    repeat: float | None = None
    """Number of the repetition, from 0."""
    acceptance_rate: float | None = None
    """Accepted draft tokens / draft tokens."""
    time_to_first_token_s: float | None = None
    """Mean seconds to the first token."""
    time_per_token_s: float | None = None
    """Mean seconds per token after it."""
    settings: str = ""
    """Other settings, in words."""

    @property
    def where(self) -> str:
        """The source in a few words: "Spec-Bench, NVIDIA A100 80GB"."""
        words = (self.publication.name, self.table.known_hardware, self.settings)
        return ", ".join(filter(None, words))


def find(model: str, method: str, task: str, temperature: float) -> tuple[PublishedValue, ...]:
    """Every published speedup of a model's method on a task, or on a task with the same prompts.

    `method` is a method without options, because published values are for official settings.
    """
    tasks = {task, SAME_PROMPTS.get(task, task)}
    cell = (model, method, temperature)
    return tuple(
        published
        for published in published_values()
        if published.task in tasks
        and published.speedup is not None
        and (published.model, published.method, published.temperature) == cell
    )


@cache
def published_values() -> tuple[PublishedValue, ...]:
    """All published values, by publication, in the order of the files.

    Raises:
        UserError: a file cannot be read. The message has its path.
    """
    paths: dict[str, Path] = {}
    for root in ROOTS:
        for path in sorted(Path(root, "results", "published").glob("*.toml")):
            paths.setdefault(path.stem, path)  # among equal names, the first root's file
    publications = [read_publication(path) for path in paths.values()]
    return tuple(published for cells in publications for published in cells)


def read_publication(path: Path) -> tuple[PublishedValue, ...]:
    """The values of a publication, from its TOML file and the CSV file of the same name.

    Raises:
        UserError: a file lacks a field, or cannot be read.
    """
    try:
        publication = msgspec.toml.decode(path.read_bytes(), type=Publication)
        publication = structs.replace(publication, key=path.stem)
        with path.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
            return tuple(_cell(publication, row) for row in csv.DictReader(file))
    except KeyError as error:
        raise UserError(f"{path} or its CSV lacks {error.args[0]!r}.", _HINT) from error
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} or its CSV cannot be read: {error}", _HINT) from error


def _cell(publication: Publication, row: Mapping[str, str]) -> PublishedValue:
    """The cell in a line of the CSV file. Empty columns are absent."""
    columns: dict[str, Any] = {name: written for name, written in row.items() if written}
    columns["publication"] = publication
    columns["table"] = publication.table[row["table"]]
    return msgspec.convert(columns, PublishedValue, strict=False)


_HINT = "results/published/README.md describes both files."
