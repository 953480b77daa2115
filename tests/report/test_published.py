"""Every file of published numbers is valid and plausible, and each of its cells is found."""

import re
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean

import pytest

from specbench import registry
from specbench.data.tasks import load_cards
from specbench.errors import UserError
from specbench.models.cards import known_models
from specbench.report.published import PublishedValue, find, published_values, read_publication
from tests.support.paths import ROOT

FOLDER = ROOT / "results" / "published"
FILES = sorted(FOLDER.glob("*.toml"))


def test_every_published_cell_occurs_once_with_its_source() -> None:
    keys = {published.publication.key for published in published_values()}
    assert keys == {path.stem for path in FILES}
    values = [published for published in published_values() if not published.publication.files]
    cells = [
        (v.publication.key, v.table.title, v.model, v.method, v.task, v.temperature) for v in values
    ]
    assert len(set(cells)) == len(cells)
    tasks = {task.name for card in load_cards().values() for task in card.tasks}
    assert {published.task for published in values} <= tasks | {"mean", "spec_bench"}
    assert {published.model for published in values} <= set(known_models())
    assert {published.method for published in values} <= set(registry.names())
    for published in values:
        about, table = published.publication, published.table
        assert about.url.startswith("https://") and table.hardware and table.title
        texts = (about.title, about.authors, about.settings, about.columns["speedup"])
        assert min(map(len, texts)) > 5
        # No method is faster than the tokens it gains.
        assert published.speedup is not None and 1.0 <= published.speedup < 6
        assert published.mat is None or published.speedup <= published.mat < 7


def varied(value: PublishedValue) -> tuple[float | None, float | None]:
    return value.num_draft_tokens, value.repeat


def test_an_imported_table_names_its_files_and_their_commit() -> None:
    values = [published for published in published_values() if published.publication.files]
    assert {value.publication.key for value in values} >= {"eagle_70b", "vllm_study"}
    cells = Counter(
        (v.publication.key, v.model, v.method, v.task, v.settings, v.load, *varied(v))
        for v in values
    )
    assert set(cells.values()) == {1}
    for value in values:
        publication = value.publication
        assert re.search(r"^https://github.com/[^/]+/[^/]+/tree/[0-9a-f]{40}/", publication.url)
        assert publication.name == "/".join(publication.url.split("/")[3:5])
        assert all(re.fullmatch(r"[0-9a-f]{64}", sha) for sha in publication.files.values())


def test_rules_for_the_same_speedup_have_labels() -> None:
    cells = find("llama2-70b-chat", "eagle", "mt_bench", 0.0)
    speedups = {cell.where: round(cell.speedup or 0, 3) for cell in cells}
    assert list(speedups.values()) == [3.01, 3.009, 2.995, 2.917, 2.907]
    assert speedups["SafeAILab/EAGLE, EAGLE's formula, with idx as the baseline's tokens"] == 3.009


def test_a_published_mean_equals_that_of_its_tasks() -> None:
    rows: defaultdict[tuple[object, ...], dict[str, PublishedValue]] = defaultdict(dict)
    for v in published_values():
        key = (v.publication.key, v.table.title, v.model, v.method, v.temperature)
        rows[key][v.task] = v
    for row in rows.values():
        total = row.pop("mean", None)
        if total is None:
            continue
        assert len(row) == 6
        speedups = [v.speedup for v in row.values() if v.speedup is not None]
        assert mean(speedups) == pytest.approx(total.speedup, abs=0.02)
        mats = [v.mat for v in row.values() if v.mat is not None]
        assert mean(mats) == pytest.approx(total.mat, abs=0.011)


def test_the_same_prompts_are_found_wherever_they_were_measured() -> None:
    cells = find("vicuna-13b", "eagle3", "mt_bench", 0.0)
    assert {cell.where: cell.speedup for cell in cells} == {
        "EAGLE-3 paper": 5.58,
        "Spec-Bench, NVIDIA A100 80GB": 3.48,
    }
    (paper,) = find("llama2-7b-chat", "eagle2", "humaneval", 1.0)
    assert (paper.speedup, paper.mat) == (3.67, 5.06)


def test_an_installation_without_the_folder_has_no_published_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.report.published.ROOTS", [tmp_path])
    assert published_values.__wrapped__() == ()


def test_a_broken_publication_names_its_file(tmp_path: Path) -> None:
    for name in ("spec_bench.toml", "spec_bench.csv"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    csv = tmp_path / "spec_bench.csv"
    csv.write_text(csv.read_text().replace("a100", "b200"))
    with pytest.raises(UserError, match="lacks 'b200'"):
        read_publication(tmp_path / "spec_bench.toml")
    csv.write_text(csv.read_text().replace("b200", "a100").replace("2.84", "fast"))
    with pytest.raises(UserError, match="cannot be read"):
        read_publication(tmp_path / "spec_bench.toml")
