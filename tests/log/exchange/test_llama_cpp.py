"""Answers of llama-server: tokens counted by either of its rules, steps from accepted drafts."""

from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.metrics import measure
from specbench.errors import UserError
from tests.analysis.run_factory import number
from tests.log.exchange.files import about, imported, needs_results, result_of_others, write_lines

TIMINGS = {
    "prompt_n": 7,
    "prompt_ms": 100.0,
    "predicted_n": 11,
    "predicted_ms": 500.0,
    "predicted_per_second": 22.0,
    "cache_n": 3,
    "draft_n": 8,
    "draft_n_accepted": 6,
}


def answer(**changes: Any) -> dict[str, Any]:
    return {"content": "a", "timings": {**TIMINGS, **changes}, "stop_type": "eos"}


@needs_results
def test_a_servers_own_answers_give_its_rates(tmp_path: Path) -> None:
    run = imported(tmp_path, f"m={result_of_others('llama-server-completion.jsonl')}")
    assert not about(run).oddities
    counts = [record.imported for record in run.records if record.imported]
    assert [count.counted_tokens for count in counts] == [31] * 4  # the tokens after the first
    assert sum(count.num_steps or 0 for count in counts) == 4 * 31 - 19 - 21 - 20 - 19
    assert [len(record.token_ids) for record in run.records] == [32] * 4
    assert (run.header.model.label, run.header.spec.values.max_new_tokens) == ("tiny", 32)
    assert run.header.spec.values.temperatures == (0.0,) and about(run).tells("temperatures")
    speed = next(f for f in about(run).figures if f.name == "tokens/s")
    assert speed.value == pytest.approx(4 * 31 / (2.46722 + 1.918025 + 2.2305 + 2.471998))


def test_steps_follow_from_accepted_drafts(tmp_path: Path) -> None:
    plain = {**answer(predicted_per_second=20.0), "timings": {**TIMINGS}}
    plain["timings"] |= {"draft_n": None, "draft_n_accepted": 0, "predicted_ms": 550.0}
    plain["timings"]["predicted_per_second"] = 20.0
    files = write_lines(tmp_path / "d.jsonl", answer()), write_lines(tmp_path / "v.jsonl", plain)
    run = imported(tmp_path, f"draft={files[0]}", f"vanilla={files[1]}")
    (draft,) = [record for record in run.records if record.key.method == "draft"]
    assert draft.imported and (draft.imported.num_emitted, draft.imported.num_steps) == (10, 4)
    assert (draft.prompt_tokens, draft.prefill_s, draft.decode_s) == (10, 0.1, 0.5)
    assert draft.stop_reason == "eos"
    mat = measure(run).overall["draft", 0.0].mat
    assert number(mat) == 2.5
    rules = {f.rule: f.value for f in about(run).figures if f.name == "MAT"}
    assert rules == {"tokens / (tokens - accepted)": 11 / 5}


def test_a_rate_that_the_times_do_not_give_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(predicted_per_second=21.0))
    (oddity,) = about(imported(tmp_path, str(path))).oddities
    assert oddity == "a.jsonl, line 1: predicted_per_second is 21, which its times do not give"


@pytest.mark.parametrize("rate", [None, 0.0, 1e6])
def test_a_token_without_a_time_counts(rate: float | None, tmp_path: Path) -> None:
    timings = {"predicted_n": 1, "predicted_ms": 0.0, "draft_n_accepted": 0}
    path = write_lines(tmp_path / "a.jsonl", answer(**timings, predicted_per_second=rate))
    run = imported(tmp_path, str(path))
    tokens = [record.imported and record.imported.published_tokens for record in run.records]
    assert (tokens, about(run).oddities) == ([1], ())


def test_steps_are_unknown_where_accepted_tokens_were_cut(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(draft_n_accepted=10, draft_n=12))
    (record,) = imported(tmp_path, str(path)).records
    assert record.imported and record.imported.num_steps is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_n_accepted": 9}, "9 draft tokens are accepted of 8"),
        ({"predicted_ms": "1"}, "predicted_ms: expected float, got str"),
        ({"predicted_ms": 0.0}, "predicted_n is 11, but predicted_ms is 0"),
        ({"prompt_n": None}, "prompt_n: expected int, got null"),
    ],
)
def test_damage_is_one_message(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(), answer(**changes))
    with pytest.raises(UserError, match=f"line 2: .*{message}"):
        imported(tmp_path, str(path))
