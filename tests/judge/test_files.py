"""Checks of stored files. Damage is a fault, and any doubt keeps a run off the leaderboard."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import asdict
from msgspec.structs import replace as replaced

from specbench.judge.files import check_files
from specbench.judge.hashes import UNKNOWN_WEIGHTS
from specbench.judge.leaderboard import find_exclusions
from specbench.log.audit import write_audit
from specbench.log.backend import WorkerHeader
from specbench.log.header import Origin
from specbench.models.cards import find_model
from specbench.models.checkpoints import identify
from specbench.types import Record
from tests.analysis.test_cheats import CHEATS, of, stepping_fast
from tests.analysis.test_cheats import run as run_of
from tests.judge.changing import with_header
from tests.judge.making import Change, good_header, good_records, rewrite, store
from tests.support.audits import failed_audit, passed_audit, stored_audit
from tests.support.paths import RECORDED
from tests.support.records import store as store_run


def faults(folder: Path) -> list[str]:
    return [check.text for check in check_files(folder).failures]


def exclusions(folder: Path) -> list[str]:
    return [check.text for check in check_files(folder).checks if check.name == "leaderboard"]


def test_a_good_run_is_sound_and_may_enter_the_leaderboard(tmp_path: Path) -> None:
    checked = check_files(store(tmp_path / "good"))
    passed = [check.name for check in checked.checks if check.status == "passed"]
    assert passed == ["lines", "records", "hashes", "source of speed"]
    skipped = [(check.name, check.text) for check in checked.checks if check.status == "skipped"]
    assert skipped == [
        (name, "no baseline: files only") for name in ("samples", "output", "audit", "MAT", "speed")
    ]
    assert checked.about["is_eligible"]
    assert checked.about["num_records"] == 4
    assert checked.about["audit"].startswith("no bug found")


@pytest.mark.parametrize("status", ["failed", "interrupted", "running", "complete"])
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_run_without_an_answer_is_not_sound(
    status: str, tmp_path: Path, *, is_empty: bool
) -> None:
    def without_answers(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line.update(status="error", error="no memory", prefill_s=None, decode_s=None)
            line.update(token_ids=[], num_tokens=0, accept_lengths=[], text="", stop_reason=None)

    run = rewrite(store(tmp_path / "run"), list.clear if is_empty else without_answers)
    header = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(header | {"status": status}))
    checked = check_files(run)
    assert checked.exit_code == 1
    assert not checked.about["is_sound"]
    assert f"The run is {status} and has no answer" in " ".join(checked.about["faults"])


def test_workers_answer_side_by_side(tmp_path: Path) -> None:
    """Together, the answers of all workers may take longer than the run. Those of one may not."""

    def of_workers(*names: str) -> Change:
        def change(lines: list[dict[str, Any]]) -> None:
            for line, name in zip(lines, names, strict=True):
                line.update(worker=name, decode_s=25.0)

        return change

    assert not faults(rewrite(store(tmp_path / "two"), of_workers("a", "a", "b", "b")))
    (fault,) = faults(rewrite(store(tmp_path / "one"), of_workers("a", "a", "a", "b")))
    assert "s, but the whole run only 60 s" in fault


def test_an_unreadable_file_is_a_fault(tmp_path: Path) -> None:
    assert "no run in" in faults(tmp_path)[0]
    folder = store(tmp_path / "cut")
    file = folder / "samples.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    assert "The last line of samples.jsonl is cut off." in faults(folder)


def of_bytes(size: int) -> dict[str, Any]:
    return {"bytes": size, "sha256": "ab" * 32}


TINY = asdict(identify(Path(find_model("tiny").repo)).files["model.safetensors"])
GPU = {"percent_busy_before": 0, "num_samples": 9}
ON_GPU = {"spec": {"values": {"device": "cuda"}}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cpu": {"share_of_others": {"mean": 0.6, "max": 1}}}, "Other programs took 60 %"),
        ({"cpu": None}, "The load of the machine was not recorded"),
        ({**ON_GPU, "gpu": {**GPU, "throttled": {"power cap": 0.5}}}, "lowered its clocks"),
        ({**ON_GPU, "gpu": {**GPU, "other_processes_most": 1}}, "shared with 1 other process"),
        ({**ON_GPU, "gpu": {**GPU, "percent_busy_before": 40}}, "40 % busy before"),
        (ON_GPU, "The state of the GPU was not recorded"),
        ({"environment": {"git": {"commit": "0" * 40, "is_dirty": True}}}, "uncommitted changes"),
        ({"model": {"is_stand_in": True}}, "The model is a stand-in"),
        ({"model": {"source": "embedded"}}, "The model is tiny"),
        ({"files": {"model.safetensors": TINY}}, "The model is tiny"),
        ({"files": {"model.gguf": of_bytes(24 * 10**6)}}, "at most 48 million parameters"),
        ({"files": {"tokenizer.json": of_bytes(10**9)}}, "The weights are unknown"),
        ({"is_original": False}, "The prompts of GSM8K come with specbench"),
        ({"status": "interrupted"}, "The run is interrupted, not complete"),
        ({"spec": {"values": {"phases": True}}}, "with --phases"),
    ],
)
def test_a_doubt_keeps_a_sound_run_off_the_leaderboard(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    folder = store(tmp_path / "doubtful", good_header(**change))
    assert check_files(folder).is_passed
    assert not check_files(folder, for_leaderboard=True).is_passed
    assert any(reason in text for text in exclusions(folder)), exclusions(folder)


def test_a_run_without_a_passed_audit_is_excluded(tmp_path: Path) -> None:
    folder = store(tmp_path / "one", is_audited=False)
    assert "There is no audit" in exclusions(folder)[0]
    audits = {
        'pld failed the audit at T=0: the test "tokens: surprise"': stored_audit(
            failed_audit("pld", 0.0), num_records=4
        ),
        "vanilla failed the audit at T=0": stored_audit(
            failed_audit("vanilla", 0.0), passed_audit("pld", 0.0), num_records=4
        ),
        "Not judged by the audit: pld at T=0 (not in the audit).": stored_audit(
            passed_audit("vanilla", 0.0), num_records=4
        ),
        "There is no audit of these records": stored_audit(passed_audit("pld", 0.0), num_records=3),
    }
    for exclusion, audit in audits.items():
        write_audit(folder, audit)
        assert exclusion in exclusions(folder)[0]


def test_failed_answers_and_a_missing_baseline_exclude(tmp_path: Path) -> None:
    first, *others = good_records()
    failed = Record(first.key, "error", 9, error="boom")
    assert "1 of 4 answers failed." in exclusions(
        store(tmp_path / "failed", records=[failed, *others])
    )
    header = good_header(spec={"values": {"methods": ["pld"]}}, num_records=2)
    lone = [record for record in good_records() if record.key.method == "pld"]
    header = replaced(header, methods={"pld": header.methods["pld"]})
    reasons = exclusions(store(tmp_path / "lone", header, lone))
    assert any(text.startswith("Vanilla was not run") for text in reasons)


def test_a_run_recorded_in_the_project_is_sound() -> None:
    folder = RECORDED / "vllm-cpu"
    assert not faults(folder)
    assert any("tiny" in text for text in exclusions(folder))


def test_the_load_of_a_merged_run_needs_all_its_workers() -> None:
    header = good_header()
    origin = Origin(id="a", created="", num_records=2, environment=header.environment)
    worker = WorkerHeader(node="", gpu_ids=(), environment=header.environment, cpu=header.cpu)
    for name, is_known in (("a/worker-1", True), ("b/worker-1", False)):
        merged = replaced(header, cpu=None, origins=(origin,), workers={name: worker})
        is_unrecorded = "The load of the machine was not recorded." in find_exclusions(
            merged, good_records(), None
        )
        assert is_unrecorded is not is_known


def test_a_local_file_with_another_hash_is_reported(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"as it was")
    files = {name: to_builtins(file) for name, file in identify(tmp_path).files.items()}
    header = good_header(model={"source": str(tmp_path)}, files=files)
    folder = store(tmp_path / "run", header)
    assert not check_files(folder).about["unchecked"]
    weights.write_bytes(b"as it is!")
    (note,) = check_files(folder).about["unchecked"]
    reason = "model.safetensors changed since the run, or the run's hash is wrong."
    assert note == f"{tmp_path}: {reason}"


def test_weights_of_a_running_server_are_unknown(tmp_path: Path) -> None:
    header = good_header()
    model = replaced(header.model, source="embedded", revision=None, files={})
    run = store(tmp_path / "run", replaced(header, model=model))
    assert check_files(run).about["unchecked"] == [UNKNOWN_WEIGHTS]


def test_speed_that_is_not_from_drafting_fails_without_a_baseline(tmp_path: Path) -> None:
    """Untimed work and a slow vanilla may be honest, so they are only reported."""
    remembering = run_of(of("pld", CHEATS["remembered_answers"].change), repeats=2)
    cheated = with_header(remembering, spec__values__repeats=2)
    slow = run_of(lambda answer: answer if answer.method == "vanilla" else stepping_fast(answer))
    for run, status in ((cheated, "failed"), (slow, "skipped")):
        checked = check_files(store_run(tmp_path / status, run.header, run.records))
        (check,) = [check for check in checked.checks if check.name == "source of speed"]
        assert check.status == status
        assert (check.text in checked.about["exclusions"]) == (status == "failed")
        assert [note for note in checked.notes if note.text == check.text]


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"vocab_size": 100, "max_position_embeddings": 13}, ""),
        ({"vocab_size": 9}, "token 9, but the vocabulary has 9"),
        ({"max_position_embeddings": 12}, "13 tokens with the prompt, but the context is 12"),
        ({"text_config": {"vocab_size": 9}}, "token 9, but the vocabulary has 9"),
        ([], ""),
    ],
)
def test_tokens_that_do_not_fit_the_models_config_are_found(
    tmp_path: Path, config: Any, word: str
) -> None:
    """The check needs the model's folder on this machine."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    header = good_header(model={"source": str(model)})
    texts = [text for text in faults(store(tmp_path / "run", header)) if "but the" in text]
    assert bool(texts) == bool(word)
    assert not word or word in texts[0]
