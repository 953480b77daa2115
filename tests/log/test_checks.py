"""Lines of samples.jsonl with impossible values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import RunFolderError
from specbench.log.store import RunFolder, read_run
from specbench.types import Phases, Record, RecordKey
from tests.support.headers import make_header
from tests.support.records import record

HEADER: dict[str, Any] = {
    "spec": {"values": {"max_new_tokens": 5, "repeats": 2, "temperatures": (0.0, 1.0)}},
    "methods": {"vanilla": {}, "pld:ngram=2": {}},
    "columns": {"gsm8k": "GSM8K"},
    "prompts": [{"task": "gsm8k", "num_prompts": 2}],
}
LINES = (record(0, phases=Phases(0.1, 0.1, 0.1, 0.1)), record(1))


def written(path: Path, **changes: Any) -> Path:
    """The samples of a run whose second line has these changes."""
    with RunFolder(path) as folder:
        folder.write_header(make_header(HEADER))
        for one in LINES:
            folder.append(one)
    samples = path / "samples.jsonl"
    first, second = samples.read_text().splitlines()
    samples.write_text(f"{first}\n{json.dumps({**json.loads(second), **changes})}\n")
    return path


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prefill_s": -0.5}, "prefill_s: expected float >= 0.0 (-0.5)"),
        ({"decode_s": None}, "decode_s: null in a line that is ok"),
        ({"token_ids": [4, 5, 6, 7]}, "num_tokens: 3, but token_ids has 4"),
        ({"token_ids": [4, -5, 6]}, "token_ids[1]: expected int >= 0 (-5)"),
        ({"num_tokens": 4}, "num_tokens: 4, but token_ids has 3"),
        ({"accept_lengths": [3]}, "accept_lengths: 1 + their sum is 4, but num_tokens is 3"),
        ({"accept_lengths": [2, 0]}, "accept_lengths[1]: expected int >= 1 (0)"),
        ({"num_nodes": [1]}, "accept_lengths[0]: 2 tokens from a tree of 1 nodes"),
        ({"num_nodes": [3, 3]}, "num_nodes: 2 steps, but accept_lengths has 1"),
        (
            {"token_ids": [1] * 6, "num_tokens": 6, "accept_lengths": [5]},
            "num_tokens: 6 is more than the run's budget of 5",
        ),
        ({"method": "vanilla"}, "accept_lengths: 2 in a line of vanilla, which drafts none"),
        ({"method": "sps"}, "method: 'sps' is not one of the run's: vanilla, pld:ngram=2"),
        ({"task": "chess"}, "task: 'chess' is not one of the run's: gsm8k"),
        ({"temperature": 0.5}, "temperature: 0.5 is not one of the run's: 0.0, 1.0"),
        ({"repeat": 2}, "repeat: 2, but the run has 2 (from 0)"),
        ({"turn": 1}, "turn: 1 of 'gsm8k/1', but turn 0 is missing"),
        ({"turn": -1}, "turn: expected int >= 0 (-1)"),
        ({"sample_id": "gsm8k/0"}, "sample_id: 'gsm8k/0' of pld:ngram=2 is in line 1 already"),
        ({"status": "error"}, "status: 'error', but the line has tokens or times"),
        (
            {"phases": {"draft_s": 0, "verify_s": 0, "commit_s": 0, "host_s": -1}},
            "phases.host_s: -1.0 is negative",
        ),
        ({"prompt_tokens": 1e400}, "prompt_tokens: "),
    ],
)
def test_an_impossible_line_is_refused_with_its_field_and_value_or_left_out(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = written(tmp_path, **changes)
    if "prompt_tokens" in changes:
        samples = path / "samples.jsonl"
        samples.write_text(samples.read_text().replace("Infinity", "1e400"))
    with pytest.raises(RunFolderError) as refused:
        read_run(path)
    assert f"samples.jsonl, line 2: $.{problem}" in refused.value.message
    run = read_run(path, is_lenient=True)
    assert run.records == LINES[:1]
    assert [problem in text for text in run.left_out] == [True]


def test_more_samples_than_the_run_had_prompts_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with RunFolder(path) as folder:
        folder.append(record(2))
    with pytest.raises(RunFolderError, match="'gsm8k/2' is one more than the 2 of gsm8k"):
        read_run(path)


def test_a_line_of_a_million_steps_is_judged_at_once(tmp_path: Path) -> None:
    steps = 10**6
    changes = {"accept_lengths": [1] * steps, "num_nodes": [1] * steps}
    with pytest.raises(RunFolderError, match="1 \\+ their sum is 1000001"):
        read_run(written(tmp_path, **changes))


def test_a_failed_turn_counts_as_a_turn(tmp_path: Path) -> None:
    key = RecordKey("vanilla", 0.0, "gsm8k", "gsm8k/1", 1, 0)
    path = written(tmp_path)
    with RunFolder(path) as folder:
        folder.append(Record(key, "error", 9, error="boom"))
    assert len(read_run(path).records) == 3
