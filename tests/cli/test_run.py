"""--threads: refused, recorded, and kept by a run that is resumed.

Phases, bandwidth and bytes read, from the command line to the run's files.
A run reports kernels that failed during the run.
A stand-in through the command line: a custom shape with tiny's tokens.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.kernels import pick_ops
from specbench.engine.layers.ops import Ops
from specbench.log.backend import Kernels
from specbench.log.machine import Threads
from specbench.log.store import RunFolder, read_run
from specbench.machine.threads import waiting
from specbench.types import Completion, Request
from tests.cli.conftest import Specbench
from tests.support.backend import Answer, answering
from tests.support.gguf_files import write_gguf
from tests.zoo.stand_in_shapes import SHAPE, write_config

SMALL = ("--template", "none", "--max-new-tokens", "12", "--offline")


@pytest.mark.usefixtures("with_plots")
def test_a_run_prints_its_table_and_keeps_run_and_report(
    specbench: Specbench, model: Path, draft: Path, prompt_file: Path
) -> None:
    methods = f"pld,lookahead,sps:weights={draft}"
    said = specbench("run", "--model", model, "--method", methods, "--prompts", prompt_file, *SMALL)
    assert said.code == 0, said.err
    assert "Vanilla" in said.out and "1.00x" in said.out
    (path,) = Path("results/runs").iterdir()
    run = read_run(path)
    assert run.header.status == "complete"
    assert run.header.spec.given == (
        "max_new_tokens", "method", "model", "offline", "prompts", "settings", "template"
    )  # fmt: skip
    labels = ["vanilla", "pld", "lookahead", "sps:weights=draft"]
    assert list(run.header.methods) == labels
    assert len(run.records) == 4 * 3
    tokens = {label: [r.token_ids for r in run.records if r.key.method == label]
              for label in labels}  # fmt: skip
    assert all(sorted(tokens[label]) == sorted(tokens["vanilla"]) for label in labels)
    report = Path("reports") / path.name
    assert {p.name for p in report.iterdir()} >= {"table.md", "table.csv", "speedup.png"}


@pytest.mark.usefixtures("answers")
def test_an_output_folder_holds_the_run_and_its_report(
    specbench: Specbench, prompt_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    call = ("run", "--method", "pld", "--prompts", prompt_file)
    said = specbench(*call, "--output", out, "--quiet")
    assert (said.code, said.err) == (0, "")
    assert (out / "run.json").is_file() and (out / "report" / "table.md").is_file()
    again = specbench(*call, "--output", out)
    assert (again.code, "holds a run already" in again.err) == (2, True)
    resumed = specbench(*call, "--output", out, "--resume")
    assert resumed.code == 0
    assert len(read_run(out).records) == 3 * 6  # three passes
    other = specbench(*call, "--output", out, "--resume", "--seed", 5)
    assert (other.code, "seed is 0 there and 5 here" in other.err) == (2, True)


def interrupted_at(count: int, answers: dict[str, Answer]) -> None:
    """Interrupt the run at this completion of PLD."""
    calls: list[Request] = []

    def answer(request: Request) -> Completion:
        calls.append(request)
        if len(calls) == count:
            raise KeyboardInterrupt
        return answering(2)(request)

    answers["pld"] = answer


@pytest.mark.parametrize("has_options", [True, False])
def test_resume_goes_on_with_the_newest_unfinished_run_and_keeps_what_it_has(
    specbench: Specbench, prompt_file: Path, answers: dict[str, Answer], has_options: bool
) -> None:
    interrupted_at(2, answers)
    call = ("run", "--method", "pld", "--prompts", prompt_file)
    assert specbench(*call).code == 130
    (path,) = Path("results/runs").iterdir()
    before = read_run(path)
    assert before.header.status == "interrupted" and 0 < len(before.records) < 6
    other = specbench("run", "--resume", "--seed", 5)
    assert (other.code, "no unfinished run with these options" in other.err) == (2, True)
    said = specbench(*(call if has_options else call[:1]), "--resume")
    assert said.code == 0 and f"Continuing the run in {path}" in said.err
    after = read_run(path)
    assert (after.header.status, len(after.records)) == ("complete", 3 * 6)
    assert after.header.created == before.header.created
    assert {"method", "prompts"} <= {*after.header.spec.given}  # also if they are given once
    assert after.records[: len(before.records)] == before.records


@pytest.mark.usefixtures("answers")
def test_a_run_is_named_by_its_folder_or_a_file_in_it_and_a_copy_by_its_own_name(
    specbench: Specbench, prompt_file: Path
) -> None:
    specbench("run", "--method", "pld", "--prompts", prompt_file, "--output", "one")
    shutil.copytree("one", "two")
    for command in ("report", "show"):
        assert specbench(command, "two/samples.jsonl").code == 0, command
    checked = specbench("check", "two/samples.jsonl", "--baseline", "one", "--speed", "never")
    assert checked.code == 3 and checked.out.startswith("Nothing was checked: 0 of 1 number")
    compared = specbench("compare", "one/run.json", "two/run.json")
    assert "A  one:" in compared.out and "B  two:" in compared.out
    assert read_run(Path("two")).header.id == "two"


@pytest.mark.usefixtures("answers")
def test_options_come_from_the_environment_too_and_are_recorded(
    specbench: Specbench, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECBENCH_RUN_METHOD", "pld")
    monkeypatch.setenv("SPECBENCH_RUN_SEED", "4")
    monkeypatch.setenv("SPECBENCH_RUN_OUTPUT", "mine")
    assert specbench("run", "--prompts", prompt_file, "--quiet").code == 0
    spec = read_run(Path("mine")).header.spec
    assert (spec.values.seed, spec.values.methods) == (4, ("vanilla", "pld"))
    assert {"seed", "method", "output"} <= {*spec.given}


@pytest.mark.usefixtures("answers")
def test_runs_are_listed_with_model_methods_progress_and_what_became_of_them(
    specbench: Specbench, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path("results/runs/mine")
    specbench("run", "--method", "pld", "--prompts", prompt_file, "--output", out)
    assert "mine complete 18 of 18 fake vanilla, pld" in listed(specbench)
    header = out / "run.json"
    header.write_text(header.read_text().replace('"complete"', '"running"'))
    assert "mine stopped 18 of 18" in listed(specbench)
    with RunFolder(out):
        assert "mine running 18 of 18" in listed(specbench)
    page = specbench("show", "mine").out
    assert "18 of 18" in page and "options in effect" in page and "{" not in page


def listed(specbench: Specbench) -> str:
    return " ".join(specbench("list", "runs").out.split())


@pytest.mark.usefixtures("answers")
def test_without_baseline_there_is_no_speedup_but_mat(
    specbench: Specbench, prompt_file: Path
) -> None:
    said = specbench("run", "--method", "pld", "--prompts", prompt_file, "--no-baseline")
    assert said.code == 0
    assert "Vanilla" not in said.out


def test_a_method_that_fails_on_every_sample_ends_the_run_with_1(
    specbench: Specbench, prompt_file: Path, answers: dict[str, Answer]
) -> None:
    def broken(request: Request) -> Completion:
        raise RuntimeError("no luck")

    answers["pld"] = broken
    said = specbench("run", "--method", "pld", "--prompts", prompt_file)
    assert said.code == 1
    assert "RuntimeError: no luck" in said.err


def test_a_gguf_file_is_named_beside_its_folder(
    specbench: Specbench, tmp_path: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    for name in ("one", "two"):
        write_gguf(tmp_path / f"{name}.gguf", "F32")
    call = ("run", "--model", tmp_path, "--method", "pld", "--prompts", prompt_file, *SMALL)
    said = specbench(*call, "--gguf", "two.gguf", "--output", "mine", "--quiet")
    assert said.code == 0, said.err
    model = read_run(Path("mine")).header.model
    assert model.name == "two" and "two.gguf" in model.files
    said = specbench(*call, "--gguf", "three.gguf")
    assert (said.code, "three.gguf" in said.err) == (2, True)


def test_a_run_records_its_threads_and_is_resumed_with_them(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    words = ("run", "--model", model, "--prompts", prompt_file, "--method", "pld", "--template",
             "none", "--max-new-tokens", "4", "--output", "out")  # fmt: skip
    assert specbench(*words, "--threads", "2").code == 0
    found = read_run(Path("out")).header
    assert found.threads == Threads(2, "option", waiting())
    assert (found.num_threads, torch.get_num_threads()) == (2, 1)
    assert "2 threads" in found.machine.device
    lines = Path("out/samples.jsonl").read_text().splitlines(keepends=True)
    Path("out/samples.jsonl").write_text("".join(lines[:-1]))
    assert specbench("run", "--output", "out", "--resume").code == 0
    assert read_run(Path("out")).header.threads == found.threads


IN_OUT = ("--template", "none", "--max-new-tokens", "12", "--offline", "--output", "out")


def test_phases_are_kept_per_sample_shown_as_costs_and_no_speed(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    call = ("run", "--model", model, "--method", "pld", "--prompts", prompt_file, *IN_OUT)
    said = specbench(*call, "--phases", "--full")
    assert said.code == 0, said.err
    run = read_run(Path("out"))
    assert run.header.spec.values.phases is True
    for line in Path("out", "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        assert list(sample["phases"]) == ["draft_s", "verify_s", "commit_s", "host_s"]
        assert 0 < sum(sample["phases"].values()) <= sample["decode_s"]
    shown = " ".join(said.out.split())
    assert "cost draft verify commit host" in shown
    assert "not evidence of speed" in shown
    other = specbench(*call, "--resume", "--trace")
    assert (other.code, "trace is False there and True here" in other.err) == (2, True)
    assert specbench("run", "--output", "out", "--resume").code == 0


def test_a_run_keeps_bandwidth_and_bytes_and_measures_no_phases_unasked(
    specbench: Specbench, model: Path, draft: Path, prompt_file: Path
) -> None:
    said = specbench("run", "--model", model, "--method", f"pld,sps:weights={draft}",
                     "--prompts", prompt_file, *IN_OUT)  # fmt: skip
    assert said.code == 0, said.err
    run = read_run(Path("out"))
    kept = run.header.roofline
    assert kept
    assert kept.bandwidth_bytes_per_s > 1e8
    assert kept.draft_bytes["vanilla"] == kept.draft_bytes["pld"] == 0
    nodes = [n for r in run.records if r.key.method.startswith("sps") for n in r.num_nodes]
    guesses = sum(nodes) / len(nodes) - 1
    assert 0 < kept.draft_bytes["sps:weights=draft"] < guesses * kept.target_bytes
    assert all(r.phases is None and r.energy_j is None for r in run.records)
    assert run.header.gpu is None


class Falling(Ops):
    """Operations whose attention falls back at its first call."""

    def attend(self, *args: Any, **named: Any) -> Tensor:
        self.fallbacks["attention"] = "run by torch, since out of resource: shared memory"
        return super().attend(*args, **named)


def test_fallbacks_during_samples_are_in_the_run_and_in_the_report(
    specbench: Specbench, model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pick_ops, "pick_native_ops", lambda dtype, folder: Falling())
    said = specbench(
        "run", "--model", model, "--prompts", prompt_file, "--method", "vanilla", "--output", "run",
        "--full", "--max-new-tokens", 4, "--device", "cpu", "--execution", "eager",
    )  # fmt: skip
    assert said.code == 0, said.err
    reason = "attention: run by torch, since out of resource: shared memory"
    header = json.loads(Path("run/run.json").read_text(encoding="utf-8"))
    assert header["kernels"] == {"name": "torch", "reason": reason}
    report = specbench("report", "run", "--format", "csv", "--out", "shown")
    assert report.code == 0, report.err
    assert f"layers by torch ({reason})" in " ".join(said.out.split())


def test_kernels_that_are_asked_for_are_stored_and_told_by_compare(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    for kind in ("torch", "plain"):
        said = specbench(
            "run", "--model", model, "--prompts", prompt_file, "--method", "pld", "--output", kind,
            "--max-new-tokens", 4, "--device", "cpu", "--kernels", kind,
        )  # fmt: skip
        assert said.code == 0, said.err
    headers = [read_run(Path(kind)).header for kind in ("torch", "plain")]
    assert [one.spec.values.kernels for one in headers] == ["torch", "plain"]
    first, second = (one.kernels for one in headers)
    assert first and second and first == Kernels("torch", None)
    assert second.name.startswith("native code")
    compared = specbench("compare", "torch", "plain")
    assert compared.code == 0, compared.err
    told = " ".join(compared.out.split())
    assert f"May explain a difference: kernels: torch in A, {second.name} in B" in told
    assert "--kernels" not in told and "not comparable" not in told


@pytest.mark.slow
def test_a_stand_in_run_has_tinys_tokens_and_is_labelled(
    specbench: Specbench, tmp_path: Path
) -> None:
    shape = write_config(tmp_path / "shape")
    call = ("run", "--method", "pld,eagle2,hydra", "--dataset", "gsm8k", "--limit", 1,
            "--max-new-tokens", 16, "--device", "cpu", "--offline")  # fmt: skip
    said = specbench(*call, "--model", shape, "--weights", "stand-in", "--output", "big")
    assert said.code == 0, said.err
    assert "stand-in" in said.out.splitlines()[0]
    assert specbench(*call, "--model", "tiny", "--output", "small").code == 0
    big, small = read_run(Path("big")), read_run(Path("small"))
    assert big.header.model.shape and big.header.model.shape.num_layers == SHAPE.num_layers
    assert big.header.spec.values.weights == "stand-in"
    weights = big.header.methods["eagle2"].weights
    assert big.header.model.is_stand_in and weights and weights.is_stand_in
    steps = [{r.key: (r.token_ids, r.accept_lengths) for r in run.records} for run in (big, small)]
    assert steps[0] == steps[1]
    hub = ("--weights", "hub")
    other = specbench(*call, "--model", shape, *hub, "--output", "big", "--resume")
    assert (other.code, "weights is 'stand-in' there" in other.err) == (2, True)
