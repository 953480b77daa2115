"""`specbench run`: its folder, its report, and how it is resumed.

The run's files record threads, phases, bandwidth and bytes read. Kernels that failed during a run
are reported.
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
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.spec import make_spec
from specbench.report import build
from specbench.report.plots import make_plots
from specbench.types import Completion, Request
from tests.cli.conftest import Specbench, cut
from tests.support.backend import Answer, answering
from tests.support.texts import assert_in
from tests.zoo.stand_in_shapes import SHAPE, write_config

SMALL = ("--template", "none", "--max-new-tokens", "6", "--device", "cpu", "--output", "out")


def test_a_run_prints_its_table_and_keeps_its_report(
    specbench: Specbench,
    model: Path,
    draft: Path,
    prompt_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specbench.measure.progress.LONG_S", 0)
    monkeypatch.setattr(build, "make_plots", make_plots)
    methods = f"pld,lookahead,sps:weights={draft}"
    small = ("--template", "none", "--max-new-tokens", "12", "--offline")
    said = specbench(
        "run", "--model", model, "--method", methods, "--prompts", prompt_file, *small, code=0
    )
    before, _, after = said.err.partition("measured in the warm-up")
    assert "Estimated time: " in before and "(12 tokens per answer; " in before
    assert "[1/" in after and "[1/" not in before
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
    kept = run.header.roofline
    assert kept and kept.bandwidth_bytes_per_s > 1e8
    assert kept.draft_bytes["vanilla"] == kept.draft_bytes["pld"] == 0
    nodes = [n for r in run.records if r.key.method == labels[3] for n in r.num_nodes]
    assert 0 < kept.draft_bytes[labels[3]] < (sum(nodes) / len(nodes) - 1) * kept.target_bytes
    assert all(r.phases is None and r.energy_j is None for r in run.records)
    assert run.header.gpu is None


@pytest.mark.usefixtures("answers")
def test_an_output_folder_holds_the_run_and_its_report(
    specbench: Specbench, prompt_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    call = ("run", "--method", "pld", "--prompts", prompt_file)
    said = specbench(*call, "--output", out, "--quiet")
    assert (said.code, said.err) == (0, "")
    assert (out / "run.json").is_file() and (out / "report" / "table.md").is_file()
    assert "holds a run already" in specbench(*call, "--output", out, code=2).err
    assert specbench(*call, "--output", out, "--resume").code == 0
    assert len(read_run(out).records) == 3 * 6  # three passes
    other = specbench(*call, "--output", out, "--resume", "--seed", 5, code=2)
    assert "seed is 0 in the run and 5 here" in other.err


@pytest.mark.parametrize("has_options", [True, False])
def test_resume_continues_the_newest_unfinished_run(
    specbench: Specbench, prompt_file: Path, answers: dict[str, Answer], has_options: bool
) -> None:
    calls: list[Request] = []

    def interrupted(request: Request) -> Completion:
        calls.append(request)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answering(2)(request)

    answers["pld"] = interrupted
    call = ("run", "--method", "pld", "--prompts", prompt_file)
    assert specbench(*call).code == 130
    (path,) = Path("results/runs").iterdir()
    before = read_run(path)
    assert before.header.status == "interrupted" and 0 < len(before.records) < 6
    other = specbench("run", "--resume", "--seed", 5, code=2)
    assert "no unfinished run with these options" in other.err
    said = specbench(*(call if has_options else call[:1]), "--resume", code=0)
    assert f"Continuing the run in {path}" in said.err
    after = read_run(path)
    assert (after.header.status, len(after.records)) == ("complete", 3 * 6)
    assert after.header.created == before.header.created
    assert {"method", "prompts"} <= {*after.header.spec.given}  # though given only at first
    assert after.records[: len(before.records)] == before.records


@pytest.mark.usefixtures("answers")
def test_a_run_may_be_named_by_its_folder_or_a_file_in_it(
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
    call = ("run", "--prompts", prompt_file, "--no-baseline")
    assert "Vanilla" not in specbench(*call, code=0).out
    spec = read_run(Path("mine")).header.spec
    assert (spec.values.seed, spec.values.methods) == (4, ("pld",))
    assert {"seed", "method", "output"} <= {*spec.given}


@pytest.mark.usefixtures("answers")
def test_runs_are_listed_with_model_methods_progress_and_status(
    specbench: Specbench, prompt_file: Path
) -> None:
    def listed() -> str:
        return " ".join(specbench("list", "runs").out.split())

    out = Path("results/runs/mine")
    specbench("run", "--method", "pld", "--prompts", prompt_file, "--output", out)
    assert "mine complete 18 of 18 fake vanilla, pld" in listed()
    header = out / "run.json"
    header.write_text(header.read_text().replace('"complete"', '"running"'))
    assert "mine stopped 18 of 18" in listed()
    with RunFolder(out):
        assert "mine running 18 of 18" in listed()
    page = specbench("show", "mine").out
    assert "18 of 18" in page and "options in effect" in page and "{" not in page


def test_a_method_that_fails_on_every_sample_ends_the_run_with_1(
    specbench: Specbench, prompt_file: Path, answers: dict[str, Answer]
) -> None:
    def broken(request: Request) -> Completion:
        raise RuntimeError("no luck")

    answers["pld"] = broken
    call = ("run", "--method", "pld", "--prompts", prompt_file)
    assert "RuntimeError: no luck" in specbench(*call, code=1).err


@pytest.mark.usefixtures("answers")
def test_a_gguf_file_is_named_beside_its_folder(
    specbench: Specbench, prompt_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "two.gguf").touch()
    call = ("run", "--model", tmp_path, "--gguf", "two.gguf", "--method", "pld")
    specbench(*call, "--prompts", prompt_file, "--output", "mine", code=0)
    assert read_run(Path("mine")).header.spec.values.model == str(tmp_path / "two.gguf")


def test_a_resumed_run_keeps_threads_and_phases(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    call = ("run", "--model", model, "--method", "pld", "--prompts", prompt_file, *SMALL)
    said = specbench(*call, "--threads", "2", "--phases", "--full", code=0)
    shown = " ".join(said.out.split())
    assert_in(shown, "cost draft verify commit host", "not evidence of speed")
    header = read_run(Path("out")).header
    assert header.spec.values.phases is True and header.threads == Threads(2, "option", waiting())
    assert (header.num_threads, torch.get_num_threads()) == (2, 1)
    assert "2 threads" in header.device_phrase
    for sample in map(json.loads, Path("out/samples.jsonl").read_text().splitlines()):
        assert list(sample["phases"]) == ["draft_s", "verify_s", "commit_s", "host_s"]
        assert 0 < sum(sample["phases"].values()) <= sample["decode_s"]
    cut(Path("out"), -1)
    assert specbench("run", "--output", "out", "--resume").code == 0
    resumed = read_run(Path("out"))
    assert resumed.header.threads == header.threads
    assert all(record.phases for record in resumed.records)


class Falling(Ops):
    """Operations whose attention falls back to torch at its first call."""

    def attend(self, *args: Any, **named: Any) -> Tensor:
        self.fallbacks["attention"] = "run by torch, since out of resource: shared memory"
        return super().attend(*args, **named)


def test_fallbacks_during_samples_are_in_the_run_and_in_the_report(
    specbench: Specbench,
    model: Path,
    prompt_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pick_ops, "pick_native_ops", lambda dtype, folder: Falling())
    call = ("run", "--model", model, "--prompts", prompt_file, "--method", "vanilla", *SMALL)
    said = specbench(*call, "--full", "--execution", "eager", code=0)
    reason = "attention: run by torch, since out of resource: shared memory"
    header = json.loads(Path("out/run.json").read_text(encoding="utf-8"))
    assert header["kernels"] == {"name": "torch", "reason": reason}
    assert f"layers by torch ({reason})" in " ".join(said.out.split())


def test_kernels_that_are_asked_for_are_stored_and_reported_by_compare(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    call = ("run", "--model", model, "--prompts", prompt_file, "--method", "pld", *SMALL[:-1])
    for kind in ("torch", "plain"):
        specbench(*call, kind, "--kernels", kind, code=0)
    headers = [read_run(Path(kind)).header for kind in ("torch", "plain")]
    assert [header.spec.values.kernels for header in headers] == ["torch", "plain"]
    first, second = (header.kernels for header in headers)
    assert first and second and first == Kernels("torch", None)
    assert second.name.startswith("native code")
    text = " ".join(specbench("compare", "torch", "plain", code=0).out.split())
    assert f"May explain a difference, from A to B: kernels: torch -> {second.name}." in text
    assert "--kernels" not in text and "not comparable" not in text


def test_a_stand_in_is_called_a_stand_in(tmp_path: Path) -> None:
    shape = str(write_config(tmp_path / "shape"))
    spec = make_spec(model=shape, weights="stand-in", methods=("eagle2",))
    description = make_engine_setup(spec, is_offline=True).describe()
    assert description.model.is_stand_in and description.model.shape
    assert description.model.shape.num_layers == SHAPE.num_layers
    weights = description.methods["eagle2"].weights
    assert weights and weights.is_stand_in
