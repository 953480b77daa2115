from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.bench.store import read_run
from tests.cli.conftest import Specbench

ROOT = Path(__file__).parents[2]
SMALL = ("--template", "none", "--max-new-tokens", "12", "--offline")


def test_a_run_prints_its_table_and_keeps_run_and_report(
    specbench: Specbench, model: Path, draft: Path, prompt_file: Path
) -> None:
    methods = f"pld,lookahead,sps:weights={draft}"
    said = specbench("run", "--model", model, "--method", methods, "--prompts", prompt_file, *SMALL)
    assert said.code == 0, said.err
    assert "Vanilla" in said.out and "1.00x" in said.out
    (path,) = Path("results/runs").iterdir()
    run = read_run(path)
    assert run.header["status"] == "complete"
    assert run.header["spec"]["given"] == [
        "max_new_tokens", "method", "model", "offline", "prompts", "template"
    ]  # fmt: skip
    labels = ["vanilla", "pld", "lookahead", "sps:weights=draft"]
    assert list(run.header["methods"]) == labels
    assert len(run.records) == 4 * 3
    tokens = {label: [r.token_ids for r in run.records if r.key.method == label]
              for label in labels}  # fmt: skip
    assert all(sorted(tokens[label]) == sorted(tokens["vanilla"]) for label in labels)
    report = Path("reports") / path.name
    assert {p.name for p in report.iterdir()} >= {"table.md", "table.csv", "speedup.png"}


def test_an_output_folder_holds_the_run_and_its_report(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    call = ("run", "--model", model, "--method", "pld", "--prompts", prompt_file, *SMALL)
    assert specbench(*call, "--output", out, "--quiet").code == 0
    assert (out / "run.json").is_file() and (out / "report" / "table.md").is_file()
    again = specbench(*call, "--output", out)
    assert (again.code, "holds a run already" in again.err) == (2, True)
    resumed = specbench(*call, "--output", out, "--resume")
    assert resumed.code == 0
    assert len(read_run(out).records) == 6
    other = specbench(*call, "--output", out, "--resume", "--seed", 5)
    assert (other.code, "seed is 0 there and 5 here" in other.err) == (2, True)


def test_quiet_prints_the_table_only(specbench: Specbench, model: Path, prompt_file: Path) -> None:
    said = specbench(
        "run", "--model", model, "--method", "pld", "--prompts", prompt_file, *SMALL, "--quiet"
    )
    assert said.err == ""


def test_reports_of_a_run_come_in_several_forms(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    specbench("run", "--model", model, "--method", "pld", "--prompts", prompt_file, *SMALL,
              "--output", "one")  # fmt: skip
    assert "| " in specbench("report", "one", "--format", "markdown").out
    assert specbench("report", "one", "--format", "csv").out.count("\n") > 2
    assert "\\begin{table*}" in specbench("report", "one", "--format", "latex").out
    assert specbench("report", "one", "--format", "html").out.startswith("<!doctype html>")
    assert json.loads(specbench("report", "one", "--format", "json").out)["schema"] == 1
    assert "Vanilla" in specbench("report", "one").out
    assert specbench("report", "one", "--format", "pdf").code == 2
    assert specbench("report", "nowhere").code == 2
    assert "one" in specbench("show", "one").out


def test_without_baseline_there_is_no_speedup_but_mat(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    said = specbench("run", "--model", model, "--method", "pld", "--prompts", prompt_file, *SMALL,
                     "--no-baseline")  # fmt: skip
    assert said.code == 0
    assert "Vanilla" not in said.out


def test_a_method_that_fails_on_every_sample_ends_the_run_with_1(
    specbench: Specbench, model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.methods.pld import PromptLookup

    def broken(self: object, state: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(PromptLookup, "propose", broken)
    said = specbench("run", "--model", model, "--method", "pld", "--prompts", prompt_file, *SMALL)
    assert said.code == 1
    assert "RuntimeError: no luck" in said.err


def start_long_run(model: Path, prompts: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "specbench", "run", "--model", str(model), "--method",
        "pld,lookahead", "--prompts", str(prompts), "--template", "none", "--max-new-tokens", "60",
        "--offline", "--repeats", "40", "--output", str(out), *more,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        command,
        env=env,
        cwd=out.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_listen_to_interrupts,
    )


def _listen_to_interrupts() -> None:
    """A shell starts background jobs, and with them this suite, deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for_samples(out: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        samples = out / "samples.jsonl"
        if samples.exists() and samples.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{out} did not get {count} samples in time")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_ended_in_the_middle_is_resumed_without_loss_or_repetition(
    how: signal.Signals, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = start_long_run(model, prompt_file, out)
    wait_for_samples(out, 25)
    first.send_signal(how)
    _, err = first.communicate(timeout=60)
    before = read_run(out)
    if how == signal.SIGINT:
        assert first.returncode == 130, err
        assert before.header["status"] == "interrupted"
    else:
        assert before.header["status"] == "running"
    assert 25 <= len(before.records) < 360
    second = start_long_run(model, prompt_file, out, "--resume", "--quiet")
    _, err = second.communicate(timeout=200)
    assert second.returncode == 0, err
    after = read_run(out)
    assert after.header["status"] == "complete"
    assert after.records[: len(before.records)] == before.records
    keys = [record.key for record in after.records]
    assert len(keys) == len(set(keys)) == 3 * 3 * 40


@pytest.mark.slow
@pytest.mark.skipif(
    "SPECBENCH_PARITY" not in os.environ or "SPECBENCH_CACHE" not in os.environ,
    reason="SPECBENCH_PARITY and SPECBENCH_CACHE name no checkpoints and question files",
)
def test_the_published_questions_run_through_a_checkpoint_into_a_table(
    specbench: Specbench,
) -> None:
    target = Path(os.environ["SPECBENCH_PARITY"], "set_a", "target").resolve()
    said = specbench("run", "--model", target, "--template", "none", "--prompts", "paper",
                     "--offline", "--limit", "2", "--max-new-tokens", "16")  # fmt: skip
    assert said.code == 0, said.err
    for column in ("MT-bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM"):
        assert column in said.out
    (path,) = Path("results/runs").iterdir()
    columns = json.loads((path / "run.json").read_text())["columns"]
    assert len(columns) == 6
