"""Prompts of files and of tasks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from specbench.data.prompts import Prompt, load_prompt_sets, load_prompts, plan_tasks
from specbench.errors import UserError
from tests.models.making import write_jsonl
from tests.support.refusals import error_with


def test_a_users_file_is_a_task_named_after_it(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "traffic.jsonl",
        [{"question_id": 7, "category": "chat", "turns": ["Hello", "Again"]}, {"prompt": "Hi"}],
    )
    (task,) = plan_tasks(["gsm8k"], str(path))
    assert (task.name, task.title) == ("traffic", "traffic")
    assert load_prompts("gsm8k", str(path)) == (
        Prompt("traffic/7", "chat", ("Hello", "Again")),
        Prompt("traffic/2", "", ("Hi",)),
    )


GOOD = json.dumps({"question_id": 1, "turns": ["fine"]}).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"turns": ["x"]', "truncated"),
        (b"[" * 100_000, "got `array`"),
        (b'{"a":' * 100_000, "recursion"),
        (b'["x"]', "Expected `object`, got `array`"),
        (b"{}", "needs either `turns` or `prompt`"),
        (b'{"turns": []}', "needs either `turns` or `prompt`"),
        (b'{"turns": "x"}', "Expected `array`, got `str` - at `$.turns`"),
        (b'{"turns": ["x", 3]}', "Expected `str`, got `int` - at `$.turns[1]`"),
        (b'{"turns": ["x", " "]}', "turn 2 is empty"),
        (b'{"turns": ["x"], "prompt": "y"}', "either"),
        (b'{"prompt": null}', "got `null` - at `$.prompt`"),
        (b'{"turns": ["x", "\\u200b \\ufeff"]}', "turn 2 is empty"),
        (b'{"turns": ["\\ud800 as text"]}', "it has a lone surrogate, \\ud800"),
        (b'{"turns": ["\\ud83d\\ude00 \\udc4d"]}', "it has a lone surrogate, \\udc4d"),
        (b'{"turns": ["end \\ud83d"]}', "it has a lone surrogate, \\ud83d"),
        (b'{"turns": ["as bytes \xed\xa0\xbd"]}', "the bytes of a lone surrogate"),
        (b'\xef\xbb\xbf{"turns": ["appended"]}', "begins with a byte order mark"),
        (b'{"turns": ["\xe9"]}', "'utf-8' codec"),
        (b'{"turns": ["x"], "category": 3}', "got `int` - at `$.category`"),
        (b'{"turns": ["x"], "question_id": 1.5}', "got `float` - at `$.question_id`"),
        (b'{"turns": ["x"], "question_id": ""}', "`question_id` is empty"),
        (b'{"turns": ["x"], "question_id": 1}', "'1' is already used in line 1"),
    ],
)
def test_a_broken_line_is_named_with_file_line_and_reason(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(GOOD + b"\n" + line + b"\n")
    with error_with(UserError, f"{path}, line 3: ", reason, hint="turns"):
        load_prompts("gsm8k", str(path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_file_in_another_encoding_is_called_by_its_name(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(GOOD.decode().encode(encoding))
    with pytest.raises(UserError, match="in UTF-16 or UTF-32, not in UTF-8"):
        load_prompts("gsm8k", str(path))


def test_prompts_with_equal_turns_are_copies_of_the_first(tmp_path: Path) -> None:
    turns = [["Tea?"], ["Coffee?"], ["Tea?"], ["Tea?", "And now?"], ["Tea?"]]
    rows = [{"question_id": number, "turns": user_turns} for number, user_turns in enumerate(turns)]
    path = write_jsonl(tmp_path / "drinks.jsonl", rows)

    def copies(num_prompts: int | None) -> dict[str, str]:
        tasks = plan_tasks([], str(path))
        (prompt_set,) = load_prompt_sets(tasks, str(path), num_prompts=num_prompts)
        return prompt_set.describe().copies

    assert copies(None) == {"drinks/2": "drinks/0", "drinks/4": "drinks/0"}
    assert copies(2) == {}


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    path = tmp_path / "mine.jsonl"
    line = json.dumps({"turns": [text]}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\n")
    (prompt,) = load_prompts("gsm8k", str(path))
    assert prompt.turns == (text,)


def test_a_limit_takes_the_first_prompts_and_a_run_records_no_path(tmp_path: Path) -> None:
    rows: list[object] = [{"turns": [f"question {i}"]} for i in range(5)]
    path = write_jsonl(tmp_path / "mine.jsonl", rows)
    (prompts,) = load_prompt_sets(plan_tasks([], str(path)), str(path), num_prompts=2)
    assert [prompt.turns[0] for prompt in prompts.prompts] == ["question 0", "question 1"]
    assert prompts.num_available == 5
    recorded = msgspec.json.encode(prompts.describe()).decode()
    assert "mine.jsonl" in recorded and str(tmp_path) not in recorded


def test_the_hash_of_a_set_depends_only_on_its_prompts(
    tmp_path: Path,
) -> None:
    def hashes(row: dict[str, object], limit: int | None = None) -> tuple[str, str | None]:
        rows: list[object] = [row, {"question_id": 2, "turns": ["b"]}]
        path = write_jsonl(tmp_path / "mine.jsonl", rows)
        (prompt_set,) = load_prompt_sets(plan_tasks([], str(path)), str(path), num_prompts=limit)
        return prompt_set.sha256, prompt_set.file_sha256

    first = hashes({"question_id": 1, "turns": ["a"]})
    with_reference = hashes({"question_id": 1, "turns": ["a"], "reference": ["r"]})
    assert with_reference[0] == first[0]
    assert with_reference[1] != first[1]
    assert hashes({"question_id": 1, "turns": ["A"]})[0] != first[0]
    assert hashes({"question_id": 1, "turns": ["a"]}, limit=1)[0] != first[0]


def test_the_bundled_prompts_of_every_default_task_load() -> None:
    sets = load_prompt_sets(plan_tasks([], "bundled"), "bundled", num_prompts=3, offline=True)
    assert [len(prompt_set.prompts) for prompt_set in sets] == [3] * 6
    assert any(len(prompt.turns) == 2 for prompt in sets[0].prompts)
