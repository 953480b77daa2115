from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specbench.log.store import RunFolder, read_run
from specbench.types import Completion, Request
from tests.cli.conftest import Specbench
from tests.support.backend import Answer, answering
from tests.support.gguf_files import write_gguf

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


def test_a_resumed_run_takes_its_options_from_the_run_and_names_its_folder(
    specbench: Specbench, prompt_file: Path, answers: dict[str, Answer], tmp_path: Path
) -> None:
    interrupted_at(2, answers)
    call = ("run", "--method", "pld", "--prompts", prompt_file, "--seed", 3, "--repeats", 2)
    assert specbench(*call, "--output", "mine").code == 130
    resumed = specbench("run", "--output", "mine", "--resume", "--seed", 3)
    assert resumed.code == 0 and "Continuing the run in mine" in resumed.err
    run = read_run(Path("mine"))
    assert (run.header.spec.values.seed, len(run.records)) == (3, 12)
    assert {"method", "repeats", "output"} <= {*run.header.spec.given}


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
