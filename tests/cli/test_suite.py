"""`specbench suite`: several runs of a recipe in one folder, with one report."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.log.store import read_run
from specbench.measure.suite.preview import preview
from specbench.measure.suite.recipe import read_recipe
from specbench.types import Completion, Record, Request
from tests.cli.conftest import Specbench
from tests.support.backend import Answer, answering
from tests.support.paths import ROOT

RECIPE = """
title = "Two runs of tiny"
[values]
methods = ["pld:num_tokens=5|10"]
limit = 1
tasks = ["gsm8k"]

[[runs]]
models = ["tiny"]

[[runs]]
models = ["tiny"]
temperatures = [0, 1]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(RECIPE)
    return path


def records(name: str) -> tuple[Record, ...]:
    return read_run(Path("results/suites", name)).records


def test_a_suite_has_a_folder_per_run_and_one_report(
    specbench: Specbench, answers: dict[str, Answer], recipe: Path
) -> None:
    said = specbench("suite", recipe, "--dry-run", code=0)
    rows = [line.split() for line in said.out.splitlines() if line.startswith("0")]
    assert [row[:5] for row in rows] == [
        ["01-tiny", "3", "3", "0.0", "GB"],
        ["02-tiny", "3", "6", "0.0", "GB"],
    ]
    assert not Path("results").exists()
    said = specbench("suite", recipe, "--quiet", code=0)
    assert [len(records(name)) for name in ("two/01-tiny", "two/02-tiny")] == [3, 6]
    assert Path("reports/two/report.html").is_file()
    assert "run 01-tiny" in said.out and "run 02-tiny" in said.out
    assert specbench("report", "results/suites/two").out == said.out


def test_a_refused_run_is_reported_and_the_others_continue(
    specbench: Specbench, answers: dict[str, Answer], tmp_path: Path
) -> None:
    path = tmp_path / "half.toml"
    path.write_text(
        'title = "Half"\n[values]\nlimit = 1\ntasks = ["gsm8k"]\nmethods = ["pld"]\n'
        '[[runs]]\nmodels = ["tini", "tiny"]\n'
    )
    said = specbench("suite", path, "--dry-run", code=2)
    assert "01-tini: No model 'tini'. Did you mean 'tiny'?" in said.out
    rows = [line.split()[0] for line in said.out.splitlines() if line.startswith("02")]
    assert rows == ["02-tiny"]
    assert "Failed: 01-tini: No model 'tini'." in specbench("suite", path, code=1).err
    assert len(records("half/02-tiny")) == 2


def test_a_stopped_suite_continues_unless_its_recipe_changed(
    specbench: Specbench, answers: dict[str, Answer], recipe: Path
) -> None:
    count = 0

    def stopping(request: Request) -> Completion:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return answering(1)(request)

    answers["vanilla"] = stopping
    assert "--resume" in specbench("suite", recipe, "--quiet", code=130).err
    before = records("two/01-tiny")
    assert "has runs already" in specbench("suite", recipe, code=2).err
    assert specbench("suite", recipe, "--quiet", "--resume").code == 0
    assert records("two/01-tiny") == before
    keys = [record.key for record in records("two/02-tiny")]
    assert len(keys) == len(set(keys)) == 6
    recipe.write_text(RECIPE.replace("limit = 1", "limit = 2"))
    said = specbench("suite", recipe, "--resume", code=1)
    assert "limit is 1 in the run and 2 here" in said.err


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("limit = 1", "limits = 1", r"line 5: No value 'limits'. Did you mean 'limit'\?"),
        ("limit = 1", 'limit = "a"', "line 5: limit='a' has the wrong type"),
        ("[values]", "[value]", "line 3: .* unknown field `value`. Did you mean 'values'"),
        ("temperatures = [0, 1]", "limit = 0", "line 13: --limit 0 is too small"),
        ('models = ["tiny"]', 'models = "tiny"', "line 9: the models of .* are 'tiny'"),
        ('title = "Two', 'title = "Two\n', "line 2"),
        ("[[runs]]", "[[other.runs]]", "cannot be read"),
        ('models = ["tiny"]', f"models = {'[' * 5000}{']' * 5000}", "cannot be read"),
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_recipe_is_refused_with_its_line(
    recipe: Path, before: str, after: str, message: str
) -> None:
    recipe.write_text(RECIPE.replace(before, after))
    with pytest.raises(UserError, match=message):
        read_recipe(recipe)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_the_recipes_of_the_project_can_be_planned(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", "/nowhere")
    previews = [preview(run.spec, lambda device: 1e12) for run in read_recipe(path).runs]
    for run_preview in previews:
        assert (
            run_preview.num_samples
            and run_preview.num_methods > 1
            and run_preview.memory_bytes
            and run_preview.max_seconds
        )
        assert not [text for text in run_preview.missing if "checkpoint" in text]
        if path.stem != "gate":
            assert run_preview.download_bytes > 10e9
