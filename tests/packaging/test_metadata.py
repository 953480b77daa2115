"""The metadata of the wheel and of CITATION.cff."""

from __future__ import annotations

from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

import specbench
from tests.packaging.shell import ROOT
from tests.packaging.test_dependencies import PROJECT


@pytest.mark.slow
def test_the_wheel_tells_type_checkers_that_it_has_types(wheel: Path) -> None:
    assert "specbench/py.typed" in ZipFile(wheel).namelist()


@pytest.mark.slow
def test_the_wheel_names_its_version_authors_and_licence(wheel: Path) -> None:
    archive = ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Version"] == specbench.__version__
    assert metadata["Author"] == "The specbench authors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == specbench.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert citation["keywords"] == PROJECT["keywords"]
