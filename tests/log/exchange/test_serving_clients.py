"""Requests of AIPerf and guidellm give each tool's own statistics, weighted as the tool does."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UserError
from tests.log.exchange.files import about, imported, needs_results, result_of_others, write_lines
from tests.support.refusals import error_with

TIMINGS = {"request_start": 1.0, "first_token_iteration": 2.0, "last_token_iteration": 3.0}
GUIDELLM: dict[str, Any] = {
    "metadata": {"guidellm_version": "0.8.1"},
    "benchmarks": [
        {
            "config": {"strategy": {"streams": 4}},
            "duration": 3.0,
            "metrics": {"request_latency": {"successful": {"mean": 2.5}}},
            "requests": {
                "successful": [
                    {
                        "info": {"timings": {**TIMINGS, "request_end": 3.5}},
                        "request_args": "{}",
                        "input_metrics": {"text_tokens": 3},
                        "output_metrics": {"text_tokens": 8},
                    }
                ]
            },
        }
    ],
}


@needs_results
def test_aiperfs_statistics_follow_from_its_requests(tmp_path: Path) -> None:
    run = imported(tmp_path, f"m={result_of_others('aiperf/profile_export.jsonl')}")
    printed = json.loads(result_of_others("aiperf/profile_export_aiperf.json").read_text())
    figures = {figure.name: figure.value for figure in about(run).figures}
    names = [name for name in figures if " " in name]
    assert len(names) == 12
    for name in names:
        metric, which = name.split()
        assert figures[name] == pytest.approx(printed[metric][which], rel=1e-9), name
    tokens = sum(record.num_tokens for record in run.records)
    assert tokens == printed["total_output_tokens"]["avg"]
    (block,) = run.header.blocks
    assert block.duration_s == pytest.approx(printed["benchmark_duration"]["avg"])


@needs_results
def test_guidellms_statistics_follow_from_its_requests(tmp_path: Path) -> None:
    run = imported(tmp_path, f"m={result_of_others('guidellm-concurrent4.json')}")
    figures = about(run).figures
    assert len(figures) == 16 and not about(run).oddities
    for figure in figures:
        assert figure.value == pytest.approx(figure.printed, rel=1e-9), figure.name
    assert about(run).files[0].version == "0.8.1"
    assert run.loads[0].concurrency == 4 and len(run.records) == 11


def metric(value: object, unit: str) -> dict[str, object]:
    return {"value": value, "unit": unit}


def request(number: int, **changes: Any) -> dict[str, Any]:
    """A line of AIPerf with 8 tokens, 4 of which are accepted draft tokens."""
    metrics = {
        "time_to_first_token": metric(250.0, "ms"),
        "request_latency": metric(1.25, "s"),
        "inter_chunk_latency": metric([500.0, 500.0], "ms"),
        "output_sequence_length": metric(8, "tokens"),
        "input_sequence_length": metric(5, "tokens"),
    }
    start = 10**18 + number * 10**9
    return {
        "metadata": {
            "session_num": number,
            "request_start_ns": start,
            "request_end_ns": start + 10**9,
        },
        "metrics": {**metrics, **changes.pop("metrics", {})},
        "error": None,
        "spec_decode_acceptance": {"num_spec_steps": 2, "num_accepted_draft_tokens": 4},
        **changes,
    }


def test_steps_without_a_draft_are_steps(tmp_path: Path) -> None:
    listed = {"num_spec_steps": 3, "num_accepted_draft_tokens": 4, "per_step_accepted": [2, 1, 1]}
    lines = request(0), request(1, spec_decode_acceptance=listed)
    first, second = imported(tmp_path, f"m={write_lines(tmp_path / 'p.jsonl', *lines)}").records
    assert first.imported and (first.imported.num_emitted, first.imported.num_steps) == (7, 3)
    assert (first.accept_lengths, second.accept_lengths) == ((), (3, 2, 2))
    assert (first.prefill_s, first.decode_s, first.wall_s) == (0.25, 1.0, 1.25)
    assert second.serving and (second.serving.began_s, second.serving.gaps_s) == (1.0, (0.5, 0.5))


def test_failed_and_warm_up_requests_are_left_out(tmp_path: Path) -> None:
    warm_up = request(0)
    warm_up["metadata"]["benchmark_phase"] = "warmup"
    bad = request(2, error={"message": "refused"}, metrics={"request_latency": None})
    del bad["metrics"]["request_latency"]
    run = imported(tmp_path, f"m={write_lines(tmp_path / 'p.jsonl', warm_up, request(1), bad)}")
    assert [record.error for record in run.records] == [None, "refused"]
    assert "1 requests of the warm-up are left out" in about(run).oddities[0]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"request_latency": metric(2, "fortnights")}, "expected ns, us, ms, s, sec, found unit"),
        ({"request_latency": metric([1, 2], "s")}, "request_latency: expected a number"),
        ({"request_latency": metric(0.1, "s")}, "the first token took 0.25 s, the request 0.1 s"),
        ({"time_to_first_token": metric("1", "s")}, "expected float | array, got str"),
    ],
)
def test_a_wrong_metric_gives_one_message(
    metrics: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "p.jsonl", request(0, metrics=metrics))
    with error_with(UserError, "line 1: ", message):
        imported(tmp_path, str(path))


def test_a_duplicate_request_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", request(0), request(0))
    with pytest.raises(UserError, match=r"Record 2 \(session 0, turn 1 of p\): .+ line 1 already"):
        imported(tmp_path, str(path))
    later_turn = request(0)
    later_turn["metadata"]["turn_index"] = 1
    with pytest.raises(UserError, match=r"turn 2 of p\): .+ but turn 0 is missing \(from 0\)"):
        imported(tmp_path, str(write_lines(tmp_path / "p.jsonl", later_turn)))


def test_a_number_that_no_line_can_hold_is_refused(tmp_path: Path) -> None:
    huge = request(0, metrics={"input_sequence_length": metric(1e308, "tokens")})
    path = write_lines(tmp_path / "p.jsonl", huge)
    with pytest.raises(UserError, match=r"line 1: metrics.input_sequence_length.value: expected"):
        imported(tmp_path, str(path))


def test_guidellm_keeps_the_drafts_that_vllm_counts(tmp_path: Path) -> None:
    content = deepcopy(GUIDELLM)
    (answer,) = content["benchmarks"][0]["requests"]["successful"]
    answer["response_metrics"] = {
        "speculative_decoding": {"num_spec_steps": 3, "num_accepted_draft_tokens": 4}
    }
    (tmp_path / "b.json").write_text(json.dumps(content))
    run = imported(tmp_path, f"m={tmp_path / 'b.json'}")
    (record,) = run.records
    assert record.imported and (record.imported.num_emitted, record.imported.num_steps) == (7, 3)
    assert about(run).lacks[:1] == ("token ids",)
    assert "steps: those after it" in about(run).counting["m"]
