"""`vllm bench serve --save-detailed`: the printed statistics, the server's counters, damage."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.stats.estimates import Estimate
from specbench.errors import UserError
from tests.analysis.run_factory import number
from tests.log.exchange.files import about, imported, needs_results, result_of_others
from tests.support.texts import assert_in

RESULT: dict[str, Any] = {
    "model_id": "m",
    "num_prompts": 2,
    "request_rate": "inf",
    "max_concurrency": 2,
    "duration": 4.0,
    "completed": 2,
    "failed": 0,
    "total_output_tokens": 8,
    "request_throughput": 0.5,
    "output_throughput": 2.0,
    "mean_ttft_ms": 750.0,
    "p50_itl_ms": 250.0,
    "std_e2el_ms": 0.0,
    "input_lens": [3, 4],
    "output_lens": [5, 3],
    "ttfts": [0.5, 1.0],
    "itls": [[0.25, 0.25, 0.0, 0.5], [0.25, 0.25]],
    "generated_texts": ["a", "b"],
    "errors": ["", ""],
    "start_times": [100.0, 100.5],
    "spec_decode_num_drafts": 5,
    "spec_decode_draft_tokens": 10,
    "spec_decode_accepted_tokens": 2,
    "spec_decode_per_position_acceptance_rates": [0.4],
}


def write(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**RESULT, **changes}))
    return str(path)


@needs_results
@pytest.mark.parametrize(
    ("name", "num_figures", "mat"),
    [
        ("vllm-bench-serve-detailed.json", 29, None),
        ("vllm-bench-serve-eagle3-detailed.json", 30, 518 / 153),
    ],
)
def test_printed_statistics_follow_from_requests(
    name: str, num_figures: int, mat: float | None, tmp_path: Path
) -> None:
    run = imported(tmp_path, f"m={result_of_others(name)}")
    figures = about(run).figures
    assert len(figures) == num_figures and not about(run).oddities
    for figure in figures:
        assert figure.value == pytest.approx(figure.printed, rel=1e-12), figure.name
    assert any("max_concurrent_requests is" in text for text in about(run).findings)
    metrics = measure(run)
    overall_mat = metrics.overall["m", 0.0].mat
    assert (overall_mat.value if isinstance(overall_mat, Estimate) else None) == mat
    (served,) = metrics.serving.values()
    printed = {figure.name: figure.printed for figure in figures}
    assert number(served.output_throughput) == pytest.approx(printed["output_throughput"])
    assert number(served.ttft.mean) * 1e3 == pytest.approx(printed["mean_ttft_ms"])


def test_a_request_becomes_an_answer_with_its_times(tmp_path: Path) -> None:
    run = imported(tmp_path, f"m={write(tmp_path)}")
    first, second = run.records
    assert (first.num_tokens, first.prefill_s, first.decode_s, first.prompt_tokens) == (
        5,
        0.5,
        1.0,
        3,
    )
    assert second.serving and second.serving.began_s == 0.5
    assert run.loads[0].concurrency == 2 and about(run).tells("concurrency")
    (block,) = run.header.blocks
    assert block.counters["accepted_at_1"] == 2.0
    assert_in(
        " ".join(about(run).findings),
        "7 for 6 tokens after the first: 1 were cut off",
        "1 of 6 times between chunks lie within one step",
    )


def test_a_statistic_that_contradicts_the_requests_is_named(tmp_path: Path) -> None:
    run = imported(tmp_path, f"m={write(tmp_path, mean_ttft_ms=751.0, completed=3)}")
    ttft, completed = about(run).oddities
    assert "completed is 3, but its requests give 2" in completed
    assert "mean_ttft_ms is 751, but its requests give 750" in ttft


def test_a_failed_request_is_a_failed_answer(tmp_path: Path) -> None:
    run = imported(tmp_path, f"m={write(tmp_path, errors=['', 'refused'], completed=1)}")
    assert [record.error for record in run.records] == [None, "refused"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ttfts": [0.5]}, "ttfts has 1 requests, output_lens 2"),
        ({"duration": 0}, "duration: expected float > 0"),
        ({"itls": [[1], "x"]}, r"itls\[1\]: expected array, got str"),
        ({"output_lens": None}, "output_lens: expected array, got null"),
    ],
)
def test_damage_gives_one_message(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        imported(tmp_path, write(tmp_path, **changes))
