"""Answers of newer and older vLLM servers, with the server's own times and drafts."""

from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.metrics import measure
from specbench.errors.kinds import UserError
from tests.analysis.run_factory import number
from tests.log.exchange.files import about, imported, write_lines


def answer(drafts: dict[str, Any], *, is_older: bool = False) -> dict[str, Any]:
    """An answer of a newer server, with its times, or of an older server."""
    choice: dict[str, Any] = {"message": {"content": "a"}, "finish_reason": "length"}
    content: dict[str, Any] = {
        "model": "m",
        "usage": {"prompt_tokens": 4, "completion_tokens": 9},
        "choices": [choice],
    }
    if is_older:
        choice["speculative_decoding_stats"] = drafts
    else:
        content["metrics"] = {
            "time_to_first_token_ms": 50.0,
            "generation_time_ms": 200.0,
            "speculative_decoding": drafts,
        }
    return content


def test_steps_and_times_are_the_servers(tmp_path: Path) -> None:
    drafts = {"num_spec_steps": 2, "num_accepted_draft_tokens": 5, "per_step_accepted": [3, 2, 0]}
    of_draft = write_lines(tmp_path / "d.jsonl", answer(drafts))
    of_vanilla = write_lines(tmp_path / "v.jsonl", answer({}))
    run = imported(tmp_path, f"draft={of_draft}", f"vanilla={of_vanilla}")
    draft, vanilla = run.records
    assert (draft.accept_lengths, draft.stop_reason) == ((4, 3, 1), "budget")
    assert (draft.prefill_s, draft.decode_s, draft.prompt_tokens) == (0.05, 0.2, 4)
    assert vanilla.imported and vanilla.imported.num_steps is None
    assert number(measure(run).overall["draft", 0.0].mat) == 8 / 3
    (figure,) = about(run).figures
    assert (figure.name, figure.value) == ("acceptance length", 3.5)


def test_drafts_without_accepted_tokens_have_no_acceptance_length(tmp_path: Path) -> None:
    complete = answer({"num_spec_steps": 3, "num_accepted_draft_tokens": 5})
    uncounted = answer({"num_spec_steps": 3})
    run = imported(tmp_path, str(write_lines(tmp_path / "d.jsonl", complete, uncounted)))
    assert about(run).figures == ()


def test_accepted_tokens_per_step_that_contradict_their_total_are_refused(tmp_path: Path) -> None:
    drafts = {"num_spec_steps": 2, "num_accepted_draft_tokens": 0, "per_step_accepted": [3, 1]}
    path = write_lines(tmp_path / "d.jsonl", answer(drafts))
    with pytest.raises(UserError, match=r"adds up to 4, but num_accepted_draft_tokens is 0"):
        imported(tmp_path, str(path))


def test_older_versions_put_counts_in_a_choice(tmp_path: Path) -> None:
    drafts = {"num_spec_steps": 3, "num_accepted_draft_tokens": 5}
    path = write_lines(tmp_path / "d.jsonl", answer(drafts, is_older=True))
    (record,) = imported(tmp_path, str(path)).records
    assert record.imported
    assert (record.imported.num_emitted, record.imported.num_steps) == (8, 3)
    assert record.wall_s is None
