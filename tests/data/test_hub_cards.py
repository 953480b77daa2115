"""Each card's Hub data set, as a tiny file with exactly its columns, read by `datasets` itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.data import hub_prompts
from specbench.data.prompts import load_prompts
from specbench.data.tasks import load_cards
from specbench.errors import UserError

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
SPEED_BENCH = {"question_id": "a" * 32, "category": "coding", "sub_category": None, "src_id": "7"}

FORMATS: dict[str, tuple[tuple[str, str | None, str], list[dict[str, Any]], list[Any]]] = {
    "mt_bench": (
        ("HuggingFaceH4/mt_bench_prompts", None, "train"),
        [{"prompt": ["One?", "Two?"], "category": "math", "prompt_id": 9, "reference": []}],
        [("mt_bench/9", "math", ("One?", "Two?"))],
    ),
    "humaneval": (
        ("openai/openai_humaneval", None, "test"),
        [{"task_id": "HumanEval/0", "prompt": "def f():", "test": "", "entry_point": "f"}],
        [("humaneval/0", "code", ("Complete the code I provided.def f():",))],
    ),
    "gsm8k": (
        ("openai/gsm8k", "main", "test"),
        [{"question": "How many?", "answer": "#### 3"}],
        [("gsm8k/0", "math", ("How many?",))],
    ),
    "alpaca": (
        ("tatsu-lab/alpaca", None, "train"),
        [
            {"instruction": "Add.", "input": text, "output": "", "text": "Below ..."}
            for text in ("", "1 and 2")
        ],
        [("alpaca/0", "", ("Add.",)), ("alpaca/1", "", ("Add.\n\n1 and 2",))],
    ),
    "cnn_dm": (
        ("abisee/cnn_dailymail", "3.0.0", "test"),
        [{"article": "It rained.", "highlights": "Rain.", "id": "f00"}],
        [("cnn_dm/0", "summarization", ("Summarize: It rained.",))],
    ),
    "natural_questions": (
        ("google-research-datasets/nq_open", None, "validation"),
        [{"question": "who wrote it", "answer": ["She", "he"]}],
        [("natural_questions/0", "qa", ("who wrote it",))],
    ),
    "translation": (
        ("wmt/wmt14", "de-en", "test"),
        [{"translation": {"de": "Es regnet .", "en": "It rains ."}}],
        [("translation/0", "translation", ("Translate German to English: Es regnet .",))],
    ),
    "rag": (
        ("RedHatAI/speculator_benchmarks", None, "train"),
        [{"question_id": 481, "category": "rag", "prompt": "A text\nWhat?", "reference": [["x"]]}],
        [("rag/481", "rag", ("A text\nWhat?",))],
    ),
    "math_500": (
        ("HuggingFaceH4/MATH-500", None, "test"),
        [{
            "problem": "Find $\\frac{1}{2}$.", "solution": "", "answer": "0.5",
            "subject": "Algebra", "level": 2, "unique_id": "test/algebra/1.json",
        }],
        [("math_500/test/algebra/1.json", "Algebra", ("Find $\\frac{1}{2}$.",))],
    ),
    "aime_2024": (
        ("HuggingFaceH4/aime_2024", None, "train"),
        [{"id": 60, "problem": "Find {x}.", "solution": "", "answer": "204", "year": "2024"}],
        [("aime_2024/60", "math", ("Find {x}.",))],
    ),
    "aime_2025": (
        ("MathArena/aime_2025", None, "train"),
        [{"problem_idx": 1, "problem": "Find y.", "answer": 70, "problem_type": ["Algebra"]}],
        [("aime_2025/1", "math", ("Find y.",))],
    ),
    "mbpp": (
        ("google-research-datasets/mbpp", "sanitized", "test"),
        [{
            "source_file": "a.ipynb", "task_id": 11, "prompt": "Write a function.", "code": "",
            "test_imports": [], "test_list": ["assert f() == 1"],
        }],
        [("mbpp/11", "code", ("Write a function.",))],
    ),
    "livecodebench": (
        ("lighteval/code_generation_lite", "v6", "test"),
        [
            {
                "question_title": "t", "question_content": "Sort it.\n", "platform": "atcoder",
                "question_id": f"abc_{i}", "difficulty": "easy", "starter_code": code,
                "public_test_cases": "[]", "private_test_cases": "", "metadata": "{}",
            }
            for i, code in enumerate(("", "class Solution:"))
        ],
        [
            ("livecodebench/abc_0", "easy", ("Sort it.",)),
            ("livecodebench/abc_1", "easy", ("Sort it.\n\n\nclass Solution:",)),
        ],
    ),
    "speed_bench": (
        ("nvidia/SPEED-Bench", "qualitative", "test"),
        [
            {**SPEED_BENCH, "turns": ["Write it.", "Shorter."]},
            {**SPEED_BENCH, "question_id": "b" * 32, "turns": [f"{PLACEHOLDER}\n\n{{question}}"]},
            {**SPEED_BENCH, "question_id": "c" * 32, "turns": [PLACEHOLDER, PLACEHOLDER]},
        ],
        [("speed_bench/" + "a" * 32, "coding", ("Write it.", "Shorter."))],
    ),
}  # fmt: skip
"""Task -> id, config and split of its data set; rows in its format; ids, categories and turns."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A Hub with one small file per data set; returns the list of what was asked of it."""
    asked: list[tuple[Any, ...]] = []
    load = datasets.load_dataset

    def load_dataset(
        name: str, config: str | None, *, split: str, revision: None, data_files: str | None = None
    ) -> Any:
        asked.append((name, config, split, data_files))
        path = tmp_path / f"{name.replace('/', '-')}.jsonl"
        return load("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))

    for (name, _, _), rows, _ in FORMATS.values():
        path = tmp_path / f"{name.replace('/', '-')}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub_prompts, "unreachable", lambda _: None)
    return asked


@pytest.mark.parametrize("task", FORMATS)
def test_a_card_reads_the_columns_of_its_data_set(task: str, hub: list[tuple[Any, ...]]) -> None:
    source, _, expected = FORMATS[task]
    prompts = load_prompts(task, "hub")
    assert [(one.sample_id, one.category, one.turns) for one in prompts] == expected
    data_files = {"rag": "rag.jsonl"}.get(task)
    assert hub == [(*source, data_files)]


def test_every_card_of_the_hub_is_tested_here() -> None:
    assert {name for name, card in load_cards().items() if card.hub} == FORMATS.keys()


@pytest.mark.usefixtures("hub")
def test_rows_that_do_not_hold_their_text_are_left_out_and_counted() -> None:
    source = load_cards()["speed_bench"].hub
    assert source is not None
    found = hub_prompts.hub_prompts("speed_bench", source, limit=None, offline=False)
    assert found.num_available == 3 and len(found.prompts) == 1
    assert found.origin == (
        "nvidia/SPEED-Bench@main, config qualitative, split test, "
        "without 2 rows whose text it does not hold"
    )


@pytest.mark.usefixtures("hub")
def test_a_card_of_the_hub_alone_is_not_run_from_other_sources() -> None:
    with pytest.raises(UserError, match="'mbpp' has no paper prompts") as caught:
        load_prompts("mbpp", "paper")
    assert "`--prompts hub`" in caught.value.hint
