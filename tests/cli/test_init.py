"""`specbench init method NAME` writes a package with a working method."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Specbench


def test_a_new_method_has_its_name_everywhere(specbench: Specbench, tmp_path: Path) -> None:
    said = specbench("init", "method", "my_idea")
    assert said.code == 0
    folder = tmp_path / "specbench-my-idea"
    code = (folder / "specbench_my_idea.py").read_text()
    assert "class MyIdea(Drafter)" in code
    assert "build=MyIdea," in code
    assert 'name="my_idea"' in code and 'title="My Idea"' in code
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "specbench-my-idea"
    points = project["project"]["entry-points"]["specbench.methods"]
    assert points == {"my_idea": "specbench_my_idea:METHOD"}
    compile(code, "specbench_my_idea.py", "exec")
    assert "bigram" not in code.lower()
    assert "Run it: specbench run --method my_idea" in said.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method", "eagle2"), "There is a method 'eagle2' already"),
        (("method", "My-Idea"), "'My-Idea' cannot be the name of a method"),
        (("method", "class"), "'class' cannot be the name of a method"),
        (("methd", "mine"), "Did you mean 'method'"),
        (("method", "mine", "--out", "."), "exists already"),
    ],
)
def test_an_invalid_new_method_is_refused(
    specbench: Specbench, words: tuple[str, ...], message: str
) -> None:
    said = specbench("init", *words)
    assert said.code == 2
    assert message in said.err
