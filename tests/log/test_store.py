"""The run folder, and lines of samples.jsonl with impossible values."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specbench.errors import RunFolderError
from specbench.log.files import open_lines
from specbench.log.folders import list_runs
from specbench.log.header import header_values
from specbench.log.record import to_line
from specbench.log.store import RunFolder, header_json, read_run, read_trace
from specbench.types import Phases, Record, RecordKey, TracedStep
from tests.support.headers import make_header
from tests.support.paths import BASELINE_RUN, RECORDED_RUNS
from tests.support.records import record, store
from tests.support.refusals import error_with

RUNS = [*RECORDED_RUNS, BASELINE_RUN]


def write(path: Path, *records: Record, **header: Any) -> None:
    store(path, make_header({"created": "2026-01-01", **header}), records)


def test_records_are_read_back_as_written(tmp_path: Path) -> None:
    failed = Record(record(1).key, "error", 9, seed=7, error="boom")
    measured = record(2, phases=Phases(0.1, 0.2, 0.3, 0.4), peak_memory_bytes=7, energy_j=0.5)
    write(tmp_path, record(), failed, measured)
    run = read_run(tmp_path)
    assert run.records == (record(), failed, measured)
    assert run.header == make_header({"created": "2026-01-01", "id": tmp_path.name})


def test_a_line_cut_short_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    write(tmp_path, record(0), record(1))
    samples = tmp_path / "samples.jsonl"
    samples.write_bytes(samples.read_bytes()[:-20])
    assert read_run(tmp_path).records == (record(0),)
    write(tmp_path, record(2))
    assert read_run(tmp_path).records == (record(0), record(2))
    samples.write_bytes(b'{"schema":1,')
    write(tmp_path, record(3))
    assert read_run(tmp_path).records == (record(3),)


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"), RunFolder(tmp_path / "taken"):
        pass


def test_runs_are_listed_newest_first_with_reasons_for_broken_ones(
    tmp_path: Path,
) -> None:
    for name, created in (("a", "2026-01-01"), ("b", "2026-03-01")):
        write(tmp_path / name, created=created)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("broken")
    runs = list_runs(tmp_path)
    assert [path.name for path in runs] == ["b", "a", "c"]
    error = [*runs.values()][2]
    assert isinstance(error, RunFolderError) and "cannot be read" in error.message


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"limit": null', '"limit": "5"', "$.spec.values.limit: expected int | null, got str"),
        ('"complete"', '"done"', "$.status: invalid enum value 'done'"),
        ('"schema": 1', '"schema": true', "is not the header of a run"),
        ('"schema": 1', '"schema": 99', "was written by a newer specbench (schema 99"),
    ],
)
def test_a_wrong_header_is_refused_with_the_path_of_the_value(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    write(tmp_path)
    header = tmp_path / "run.json"
    header.write_text(header.read_text().replace(old, new))
    with error_with(RunFolderError, reason, str(tmp_path)):
        read_run(tmp_path)


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, record(0))
    header, samples = tmp_path / "run.json", tmp_path / "samples.jsonl"
    header.write_text(json.dumps({**json.loads(header.read_text()), "mood": "good"}))
    samples.write_text(json.dumps({**json.loads(samples.read_text()), "mood": "good"}) + "\n")
    run = read_run(tmp_path)
    assert run.records == (record(0),)
    assert "mood" not in header_values(run.header)


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_a_recorded_run_is_read_and_written_again_unchanged(folder: Path) -> None:
    run = read_run(folder)
    assert header_json(run.header) == (folder / "run.json").read_bytes()
    with open_lines(folder / "samples.jsonl") as file:
        lines = file.read().splitlines()
    written = (json.loads(msgspec.json.encode(to_line(record))) for record in run.records)
    for line, again in zip(lines, written, strict=True):
        assert json.loads(line) == again


def test_parts_that_an_older_version_did_not_write_have_their_defaults(tmp_path: Path) -> None:
    write(tmp_path)
    values = json.loads((tmp_path / "run.json").read_text())
    for name in ("phases", "weights", "execution", "trace", "top_p"):
        del values["spec"]["values"][name]
    del values["model"]["is_stand_in"]
    (tmp_path / "run.json").write_text(json.dumps(values))
    header = read_run(tmp_path).header
    assert header.spec.values == make_header().spec.values
    assert (header.model.is_stand_in, header.gpu, header.execution) == (False, None, {})


def test_a_trace_is_read_back_and_minus_infinity_stays_a_number(tmp_path: Path) -> None:
    steps = (TracedStep((0, 0), (0.0, float("-inf")), (0,)), TracedStep((0,), (None,), (0,)))
    write(tmp_path, record(0, trace=steps))
    (line,) = read_trace(tmp_path)
    assert (line.method, line.sample_id) == ("pld:ngram=2", "gsm8k/0")
    assert line.steps[0].log_probs[1] == -sys.float_info.max
    assert line.steps[1] == steps[1]


HEADER: dict[str, Any] = {
    "spec": {"values": {"max_new_tokens": 5, "repeats": 2, "temperatures": (0.0, 1.0)}},
    "methods": {"vanilla": {}, "pld:ngram=2": {}},
    "columns": {"gsm8k": "GSM8K"},
    "prompts": [{"task": "gsm8k", "num_prompts": 2}],
}
LINES = (record(0, phases=Phases(0.1, 0.1, 0.1, 0.1)), record(1))


def written(path: Path, **changes: Any) -> Path:
    """Write a run whose second line has these changes. Return its file of samples."""
    samples = store(path, make_header(HEADER), LINES) / "samples.jsonl"
    first, second = samples.read_text().splitlines()
    samples.write_text(f"{first}\n{json.dumps({**json.loads(second), **changes})}\n")
    return path


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prefill_s": -0.5}, "prefill_s: expected float >= 0.0 (-0.5)"),
        ({"decode_s": None}, "decode_s: null in a line that is ok"),
        ({"token_ids": [4, 5, 6, 7]}, "num_tokens: 3, but the answer has 4"),
        ({"token_ids": [4, -5, 6]}, "token_ids[1]: expected int >= 0 (-5)"),
        ({"num_tokens": 4}, "num_tokens: 4, but the answer has 3"),
        ({"accept_lengths": [3]}, "accept_lengths: 1 + their sum is 4, but num_tokens is 3"),
        ({"accept_lengths": [1] * 10**5}, "accept_lengths: 1 + their sum is 100001, but"),
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
        ({"turn": 1}, "turn: 1 of 'gsm8k/1', but turn 0 is missing (from 0)"),
        ({"turn": -1}, "turn: expected int >= 0 (-1)"),
        ({"sample_id": "gsm8k/0"}, "sample_id: 'gsm8k/0' of pld:ngram=2 is in line 1 already"),
        ({"status": "fine"}, "status: invalid enum value 'fine'"),
        ({"decode_s": "fast"}, "decode_s: expected float | null, got str"),
        ({"schema": 9}, "schema: invalid value 9"),
        ({"status": "error"}, "status: 'error', but the line has tokens or times"),
        (
            {"phases": {"draft_s": 0, "verify_s": 0, "commit_s": 0, "host_s": -1}},
            "phases.host_s: -1 is not between 0 and 1e+10",
        ),
        (
            {"phases": {"draft_s": 0, "verify_s": 2e12, "commit_s": 0, "host_s": 0}},
            "phases.verify_s: 2e+12 is not between 0 and 1e+10",
        ),
        ({"prefill_s": 1e300}, "prefill_s: expected float <= 10000000000.0 (1e+300)"),
        ({"energy_j": 5e10}, "energy_j: expected float <= 10000000000.0 (50000000000.0)"),
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
    with error_with(RunFolderError, f"samples.jsonl, line 2: $.{problem}"):
        read_run(path)
    run = read_run(path, is_lenient=True)
    assert run.records == LINES[:1]
    assert [problem in text for text in run.left_out] == [True]


def test_more_samples_than_the_run_had_prompts_are_refused(tmp_path: Path) -> None:
    store(tmp_path, make_header(HEADER), [*LINES, record(2)])
    with pytest.raises(RunFolderError, match="'gsm8k/2' is beyond the 2 prompts of gsm8k"):
        read_run(tmp_path)


def test_a_failed_turn_counts_as_a_turn(tmp_path: Path) -> None:
    key = RecordKey("vanilla", 0.0, "gsm8k", "gsm8k/1", 1, 0)
    store(tmp_path, make_header(HEADER), [*LINES, Record(key, "error", 9, error="boom")])
    assert len(read_run(tmp_path).records) == 3


@pytest.mark.parametrize(
    ("decode_s", "changes", "is_possible"),
    [
        (0.31, {}, True),
        (0.29, {}, False),
        (0.29, {"nominal_bytes_per_s": 0.0}, True),  # unknown
        (0.29, {"cache_bytes": 500}, True),  # half of the weights may stay in the cache
        (0.29, {"unread_bytes": 100, "is_mixture_of_experts": True}, True),
        (0.29, {"is_mixture_of_experts": True}, True),
    ],
)
def test_steps_that_read_faster_than_the_memory_can_are_impossible(
    tmp_path: Path, decode_s: float, changes: dict[str, Any], *, is_possible: bool
) -> None:
    """At 10,000 bytes/s, three steps that each read 1,000 bytes take 0.3 s."""
    roofline = {
        "bandwidth_bytes_per_s": 8000.0,
        "nominal_bytes_per_s": 10000.0,
        "cache_bytes": 0,
        "target_bytes": 1000,
        "kv_bytes_per_token": 1,
        "is_mixture_of_experts": False,
        **changes,
    }
    answer = replace(
        record(),
        decode_s=decode_s,
        accept_lengths=(1, 1, 1),
        num_nodes=(2, 2, 2),
        token_ids=(1, 2, 3, 4),
    )
    write(tmp_path, answer, roofline=roofline)
    if is_possible:
        assert len(read_run(tmp_path).records) == 1
        return
    with pytest.raises(RunFolderError, match="at the nominal bandwidth"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("number", "shown"), [("1e308", "1e+308"), ("-1e300", "-1e+300"), ("9" * 400, "1329 bits")]
)
def test_a_header_with_an_endless_number_is_refused(
    tmp_path: Path, number: str, shown: str
) -> None:
    store(tmp_path, make_header(HEADER), LINES)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"seed": 0', f'"seed": {number}', 1))
    with error_with(
        RunFolderError, f"never that large ({shown})", match=r"\$\.spec\..+seed: a number"
    ):
        read_run(tmp_path)
