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
    """An answer as llama-server sends it, with changed timings."""
    return {"content": "a", "timings": {**TIMINGS, **changes}, "stop_type": "eos"}


@needs_results
def test_a_servers_own_answers_give_its_rates(tmp_path: Path) -> None:
    run = imported(tmp_path, f"m={result_of_others('llama-server-completion.jsonl')}")
    assert [len(record.token_ids) for record in run.records] == [32] * 4
    counts = [record.imported for record in run.records if record.imported]
    num_counted = 4 * 31  # the tokens after the first of each answer
    num_accepted = 19 + 21 + 20 + 19
    assert [count.counted_tokens for count in counts] == [31] * 4
    assert sum(count.num_steps or 0 for count in counts) == num_counted - num_accepted

    assert run.header.model.label == "tiny"
    values = run.header.spec.values
    assert (values.max_new_tokens, values.temperatures) == (32, (0.0,))

    source = about(run)
    assert not source.oddities and source.tells("temperatures")
    decode_s = 2.46722 + 1.918025 + 2.2305 + 2.471998
    rate = next(figure.value for figure in source.figures if figure.name == "tokens/s")
    assert rate == pytest.approx(num_counted / decode_s)


def test_steps_follow_from_accepted_drafts(tmp_path: Path) -> None:
    plain = answer(draft_n=None, draft_n_accepted=0, predicted_ms=550.0, predicted_per_second=20.0)
    draft_path = write_lines(tmp_path / "d.jsonl", answer())
    vanilla_path = write_lines(tmp_path / "v.jsonl", plain)
    run = imported(tmp_path, f"draft={draft_path}", f"vanilla={vanilla_path}")

    (draft,) = [record for record in run.records if record.key.method == "draft"]
    counts = draft.imported
    assert counts and (counts.num_emitted, counts.num_steps) == (10, 4)
    assert (draft.prompt_tokens, draft.prefill_s, draft.decode_s) == (10, 0.1, 0.5)
    assert draft.stop_reason == "eos"

    assert number(measure(run).overall["draft", 0.0].mat) == 2.5
    mats = {figure.rule: figure.value for figure in about(run).figures if figure.name == "MAT"}
    assert mats == {"tokens / (tokens - accepted)": 11 / 5}


def test_a_rate_that_the_times_do_not_give_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(predicted_per_second=21.0))
    (oddity,) = about(imported(tmp_path, str(path))).oddities
    assert oddity == "a.jsonl, line 1: predicted_per_second is 21, which its times do not give"


@pytest.mark.parametrize("rate", [None, 0.0, 1e6])
def test_a_token_without_a_time_counts(rate: float | None, tmp_path: Path) -> None:
    one_token = answer(
        predicted_n=1,
        predicted_ms=0.0,
        predicted_per_second=rate,
        draft_n_accepted=0,
    )
    path = write_lines(tmp_path / "a.jsonl", one_token)
    run = imported(tmp_path, str(path))
    (record,) = run.records
    assert record.imported and record.imported.published_tokens == 1
    assert about(run).oddities == ()


def test_steps_are_unknown_if_accepted_tokens_were_cut(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(draft_n_accepted=10, draft_n=12))
    (record,) = imported(tmp_path, str(path)).records
    assert record.imported and record.imported.num_steps is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_n_accepted": 9}, "9 of 8 draft tokens are accepted"),
        ({"predicted_ms": "1"}, "predicted_ms: expected float, got str"),
        ({"predicted_ms": 0.0}, "predicted_n is 11, but predicted_ms is 0"),
        ({"prompt_n": None}, "prompt_n: expected int, got null"),
    ],
)
def test_damage_gives_one_message(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", answer(), answer(**changes))
    with pytest.raises(UserError, match=f"line 2: .*{message}"):
        imported(tmp_path, str(path))
