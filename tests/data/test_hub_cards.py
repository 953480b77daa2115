"""Each card's Hub data set, read by `datasets` from a tiny file with exactly its columns."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.data import hub_prompts
from specbench.data.prompts import load_prompts
from specbench.data.tasks import load_cards
from tests.models.making import write_jsonl

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

FORMATS = json.loads(Path(__file__).with_name("hub_rows.json").read_text(encoding="utf-8"))
"""By task: the id, config and split of its data set, rows in its format, and their ids, categories
and turns.
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A Hub with one small file per data set. The fixture is the list of its requests."""
    asked: list[tuple[Any, ...]] = []
    load = datasets.load_dataset

    def load_dataset(
        name: str, config: str | None, *, split: str, revision: None, data_files: str | None = None
    ) -> Any:
        asked.append((name, config, split, data_files))
        path = tmp_path / f"{name.replace('/', '-')}.jsonl"
        return load("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))

    for about in FORMATS.values():
        name = about["source"][0].replace("/", "-")
        write_jsonl(tmp_path / f"{name}.jsonl", about["rows"])
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub_prompts, "unreachable", lambda _: None)
    return asked


@pytest.mark.parametrize("task", FORMATS)
def test_a_card_reads_the_columns_of_its_data_set(task: str, hub: list[tuple[Any, ...]]) -> None:
    prompts = [
        [prompt.sample_id, prompt.category, [*prompt.turns]] for prompt in load_prompts(task, "hub")
    ]
    assert prompts == FORMATS[task]["prompts"]
    assert hub == [(*FORMATS[task]["source"], {"rag": "rag.jsonl"}.get(task))]


def test_every_card_of_the_hub_is_tested_here() -> None:
    assert {name for name, card in load_cards().items() if card.hub} == FORMATS.keys()


@pytest.mark.usefixtures("hub")
def test_rows_that_do_not_hold_their_text_are_left_out_and_counted() -> None:
    source = load_cards()["speed_bench"].hub
    assert source is not None
    prompts = hub_prompts.hub_prompts("speed_bench", source, num_prompts=None, offline=False)
    assert prompts.num_available == 3 and len(prompts.prompts) == 1
    assert prompts.origin == (
        "nvidia/SPEED-Bench@main, config qualitative, split test, "
        "without the 2 rows whose text is elsewhere"
    )
