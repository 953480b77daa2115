"""Read numbers that papers and leaderboards published, to show them beside ours.

Only `compare --explain` computes with them. A publication is a TOML file and a CSV file of the same
name. The TOML file has the source, its settings, the meaning of the columns, and the tables with
their hardware. The CSV file has the values. Both are in `results/published`, which is beside the
package in a checkout and inside it in a wheel. An installation without this folder has no published
numbers, which is not an error.
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
"""Task of ours -> task of another suite with exactly the same prompts."""


class PublishedTable(Struct, frozen=True):
    """A table of a publication."""

    title: str
    """The caption of the table."""
    hardware: str
    """The hardware, or the words "not stated"."""

    @property
    def known_hardware(self) -> str:
        """The hardware, or "" if the publication does not state it."""
        return "" if self.hardware.startswith("not ") else self.hardware


class Publication(Struct, frozen=True, kw_only=True):
    """A source of published numbers."""

    key: str = ""
    """The name of the file, without its extension."""
    name: str
    """A short name, such as "Spec-Bench"."""
    title: str
    """The title of the paper or page."""
    authors: str = ""
    """The authors as printed there, or "" for an imported table."""
    year: int = 0
    """The year of publication, or 0 for an imported table."""
    url: str = ""
    """The address, or "" for an imported table."""
    files: dict[str, str] = {}
    """The files from which an imported table was made, with their hashes."""
    settings: str
    """The conditions of the measurement."""
    columns: dict[str, str]
    """The meaning of each column."""
    table: dict[str, PublishedTable]
    """The tables, by the name that the CSV file uses."""


class PublishedValue(Struct, frozen=True):
    """One cell of a published table."""

    publication: Publication
    """The source."""
    table: PublishedTable
    """The table."""
    model: str
    """specbench's name for the model."""
    method: str
    """specbench's name for the method, without options."""
    task: str
    """specbench's name for the task. "mean" is the publication's mean over its tasks. The name of a
    suite, such as "spec_bench", stands for all its questions together.
    """
    temperature: float
    """The sampling temperature."""
    speedup: float | None = None
    """The speedup over the publication's baseline, or None if it was not published."""
    mat: float | None = field(default=None, name="mean_accepted_tokens")
    """Mean accepted tokens. All numbers from here on are None if they were not published."""
    tokens_per_s: float | None = None
    """Tokens per second."""
    load: float | None = None
    """Requests at once."""
    num_draft_tokens: float | None = None
    """Draft tokens per step."""
    repeat: float | None = None
    """The number of the repetition, from 0."""
    acceptance_rate: float | None = None
    """Accepted draft tokens / all draft tokens."""
    time_to_first_token_s: float | None = None
    """The mean number of seconds to the first token."""
    time_per_token_s: float | None = None
    """The mean number of seconds per later token."""
    settings: str = ""
    """Other settings, in words."""

    @property
    def where(self) -> str:
        """The source in a few words, such as "Spec-Bench, NVIDIA A100 80GB"."""
        words = (self.publication.name, self.table.known_hardware, self.settings)
        return ", ".join(filter(None, words))


def find(model: str, method: str, task: str, temperature: float) -> tuple[PublishedValue, ...]:
    """Return the published speedups of a method on a task, or on a task with the same prompts.

    `method` has no options, because published values are for the official settings.
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
    """Return all published values in the order of the files.

    Raises:
        UserError: a file cannot be read. The message has its path.
    """
    paths: dict[str, Path] = {}
    for root in ROOTS:
        for path in sorted(Path(root, "results", "published").glob("*.toml")):
            # if two roots have a file of the same name, the first root counts
            paths.setdefault(path.stem, path)
    publications = [read_publication(path) for path in paths.values()]
    return tuple(published for cells in publications for published in cells)


def read_publication(path: Path) -> tuple[PublishedValue, ...]:
    """Return the values of a publication from its TOML file and its CSV file.

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
    """Return the value in a line of the CSV file. Empty columns are None."""
    columns: dict[str, Any] = {name: written for name, written in row.items() if written}
    columns["publication"] = publication
    columns["table"] = publication.table[row["table"]]
    return msgspec.convert(columns, PublishedValue, strict=False)


_HINT = "results/published/README.md describes both files."
