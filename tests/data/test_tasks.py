"""Errors in the cards of tasks name the field and the file."""

from pathlib import Path

import pytest

from specbench.data.prompts import load_prompts
from specbench.data.tasks import broken_cards, default_tasks, find_tasks, load_cards
from specbench.errors import UserError
from specbench.types import ROOTS
from tests.models.making import CARD, drop_card, write_jsonl

LATER = [
    "translation", "rag", "math_500", "aime_2024", "aime_2025", "mbpp", "livecodebench",
    "speed_bench",
]  # fmt: skip
SIX = ["mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm", "natural_questions"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the package's search path, like a checkout's root."""
    monkeypatch.setattr("specbench.data.tasks.ROOTS", (*ROOTS, tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", [*SIX, "spec_bench"])
def test_every_card_pins_a_published_file_by_commit_and_hash(name: str) -> None:
    paper = load_cards()[name].paper
    assert paper is not None
    commit = paper.url.split("/")[5]
    assert len(commit) == 40
    assert len(paper.sha256) == 64
    assert paper.license
    assert name not in SIX or load_cards()[name].sources == ("bundled", "paper", "hub")


def test_a_suite_stands_for_its_six_sub_tasks() -> None:
    tasks = find_tasks(["spec_bench"])
    parts = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
    assert [task.name for task in tasks] == [f"spec_bench/{part}" for part in parts]
    assert len({category for task in tasks for category in task.categories}) == 13


def test_one_sub_task_can_be_named_alone_and_no_task_comes_twice() -> None:
    tasks = find_tasks(["spec_bench/rag", "gsm8k", "spec_bench/rag", "gsm8k"])
    assert [task.name for task in tasks] == ["spec_bench/rag", "gsm8k"]


def test_a_new_task_is_one_card_and_runs_by_default_only_if_it_says_so(root: Path) -> None:
    drop_card(root)
    write_jsonl(root / "datasets/prompts/haiku.jsonl", [{"turns": ["Write one."]}])
    (prompt,) = load_prompts("haiku", "bundled")
    assert prompt.sample_id == "haiku/1"
    assert [card.title for card in load_cards().values()][-1] == "Haiku"
    assert [task.name for task in default_tasks()] == SIX
    titles = ["MT-bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM", "Natural Ques."]
    assert [task.title for task in default_tasks()] == titles
    drop_card(root, CARD + "is_default = true\norder = 0\n")
    assert default_tasks()[0].name == "haiku"


PAPER = f'url = "https://example.org/q"\npath = "haiku/q"\nnum_prompts = 1\nsha256 = "{"0" * 64}"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "cannot be read"),
        ('name = "haiku"\ntitle = "Haiku"\n', "required field `description`"),
        (CARD.replace('"haiku"', '"tanka"'), "names the task 'tanka'"),
        (CARD + "colour = 1\n", "line 5: .* unknown field `colour`. Known: categories, category,"),
        (CARD + "[papers]\na = 1\n", "line 5: .* unknown field `papers`. Did you mean 'paper'"),
        (CARD + "order = []\n", r"Expected `int`, got `array` - at `\$.order`"),
        (f"name = {'[' * 5000}{']' * 5000}", "recursion|nested"),
        (CARD + "[paper]\n" + PAPER.replace("0" * 64, "abc"), "64 hex digits"),
        (CARD + "[paper]\n" + PAPER.replace("haiku/q", "../q"), "leaves the cache folder"),
        (CARD + "[paper]\n" + PAPER.replace("num_prompts = 1", ""), "required field `num_prompts`"),
        (CARD + '[hub]\nid = "a/b"\nsplit = "test"\n', "'turns' or 'turns_field'"),
        (CARD + '[[group]]\nname = "a"\n', r"required field `title` - at `\$.group\[0\]`"),
    ],
)
def test_a_broken_card_is_named_with_what_is_wrong(root: Path, text: str, reason: str) -> None:
    path = drop_card(root, text)
    with pytest.raises(UserError, match=reason) as caught:
        find_tasks(["haiku"])
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert list(load_cards()) == [*SIX, "spec_bench", *LATER], "the other tasks are still there"
    assert list(broken_cards()) == ["haiku"]
