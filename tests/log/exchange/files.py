"""Result files of other tools: published files, and small files in the same formats."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from specbench.log.exchange.convert import UserFacts, convert, parse_file
from specbench.log.imported import ImportedHeader
from specbench.log.merge import write_run
from specbench.log.run import Run
from specbench.log.store import read_run

PUBLISHED = Path(os.environ.get("SPECBENCH_PUBLISHED", ""))
needs_published = pytest.mark.skipif(
    not ("SPECBENCH_PUBLISHED" in os.environ and PUBLISHED.is_dir()),
    reason="SPECBENCH_PUBLISHED names no folder with others' published result files",
)


RESULTS_OF_OTHERS = PUBLISHED.parent / "results_of_others"
needs_results = pytest.mark.skipif(
    not ("SPECBENCH_PUBLISHED" in os.environ and RESULTS_OF_OTHERS.is_dir()),
    reason="SPECBENCH_PUBLISHED has no results_of_others beside it: files that other tools wrote",
)


def result_of_others(name: str) -> Path:
    """A result file that another tool wrote for the tests."""
    return RESULTS_OF_OTHERS / name


def published(pattern: str) -> Path:
    """The published file with this name, in which "*" stands for any text."""
    (path,) = PUBLISHED.glob(pattern)
    return path


def imported(tmp_path: Path, *files: str, **facts: Any) -> Run:
    """The run of these files, written and read back."""
    run = convert([parse_file(file) for file in files], UserFacts(**facts))
    write_run(run, tmp_path / "imported")
    stored = read_run(tmp_path / "imported")
    assert stored.records == run.records
    return stored


def about(run: Run) -> ImportedHeader:
    """The part of the header about an imported run's source."""
    assert run.header.imported
    return run.header.imported


def write_lines(path: Path, *lines: Any) -> Path:
    """Write a file with a JSON value on each line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answer(question: int, **lists: Any) -> dict[str, Any]:
    """A line in EAGLE's format, with one answer."""
    values = {"turns": ["a b"], "idxs": [1], "new_tokens": [6], "wall_time": [0.5], **lists}
    return {"question_id": question, "model_id": "m-temperature-0.0", "choices": [values]}
