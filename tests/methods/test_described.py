"""Descriptions of methods, read without importing them."""

import re
from pathlib import Path

import pytest

from specbench import methods
from specbench.methods import About, described
from specbench.registry import entries, get, paper_methods


@pytest.mark.parametrize("name", described())
def test_the_description_of_a_method_is_its_own(name: str) -> None:
    method, about = get(name), described()[name]
    for field in ("weights", "head", "paper_order", "is_default", "colour"):
        assert getattr(about, field) == getattr(method, field)
    assert about.summary and re.fullmatch("#[0-9A-F]{6}", about.colour or "#777777")


def test_papers_come_first_in_their_order() -> None:
    order = ["vanilla", "sps", "pld", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3"]
    assert paper_methods() == order == list(described())[:9]


def test_a_file_that_cannot_be_read_is_an_entry_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text("METHOD = (")
    monkeypatch.setattr(methods, "__path__", [str(tmp_path)])
    descriptions = described.__wrapped__()
    error = descriptions["odd"].error
    assert descriptions == {"odd": About(error=error)} and "cannot be read" in error
    monkeypatch.setattr("specbench.registry.lookup.described", lambda: descriptions)
    assert [entry.error for entry in entries() if entry.name == "odd"] == [error]
