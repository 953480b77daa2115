"""User errors that are not in mistakes.txt end with exit code 2 and one message with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model
from tests.cli.conftest import Specbench
from tests.support.checkpoint import save_checkpoint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rn", "No such command 'rn'. Did you mean 'run'?"),
        ("run --metod pld", "No such option: --metod (Possible options: --method,"),
        ("list", "Missing argument 'KIND'."),
    ],
)
def test_a_wrong_command_or_option_is_reported_with_the_likely_one(
    specbench: Specbench, words: str, message: str
) -> None:
    assert message in specbench(*words.split(), code=2).err


@pytest.mark.parametrize(
    ("arguments", "is_offline", "message"),
    [
        ("--model nope", False, "No model 'nope'"),
        ("--method pdl", False, "Did you mean 'pld'?"),
        ("", True, "the run is offline"),
        ("--offline", False, "the run is offline"),
        ("--prompts hub", True, "the run is offline"),
        ("--prompts hub --offline", False, "the run is offline"),
    ],
)
def test_nothing_is_fetched_for_unknown_names_or_offline(
    specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: str, is_offline: bool, message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if is_offline else "0")
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *given, **_: asked.append(given))
    call = ("run", "--dataset", "gsm8k", "--prompts", "paper", *arguments.split())
    assert message in specbench(*call, code=2).err
    assert not asked


def test_a_draft_of_another_vocabulary_is_refused(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    other = save_checkpoint(tmp_path / "other", seed=1, layers=1)
    path = other / "tokenizer.json"
    path.write_text(path.read_text().replace('"a": ', '"a\\u00ad": ', 1))
    method = f"sps:weights={other}"
    said = specbench("run", "--model", model, "--method", method, "--prompts", prompt_file, code=2)
    assert "vocabulary" in said.err


@pytest.mark.parametrize(
    ("variable", "setting", "message"),
    [
        ("LIMIT", "many", "--limit many is not a whole number. The value is from the variable"),
        ("TEMPERATURE", "warm", "warm is not a number. The value is from the variable"),
        ("METHOD", "pdl", "No method 'pdl'. Did you mean 'pld'? The value is from the variable"),
        ("MODEL", "vicuna", "'vicuna'. Did you mean 'vicuna-7b'? The value is from the variable"),
    ],
)
def test_a_wrong_value_of_a_variable_names_the_variable(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch, variable: str, setting: str, message: str
) -> None:
    monkeypatch.setenv(f"SPECBENCH_RUN_{variable}", setting)
    said = specbench("run", "--seed", "1", code=2)
    assert f"{message} SPECBENCH_RUN_{variable}." in said.err
    # the same on the command line
    said = specbench("run", f"--{variable.lower()}", setting, code=2)
    assert "variable" not in said.err


def test_an_unknown_variable_gives_a_warning(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECBENCH_RUN_METHODS", "pld")
    monkeypatch.setenv("SPECBENCH_RUN_LIMIT", "1")
    said = specbench("run", "--method", "pdl")
    sentence = "The variable SPECBENCH_RUN_METHODS is not an option, and is ignored. Did you mean"
    assert f"{sentence} SPECBENCH_RUN_METHOD?" in said.err
    assert "SPECBENCH_RUN_LIMIT is" not in said.err


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ("EAGLE2", "eagle2"),
        ("EAGLE-2:depth=3,Pld", "eagle2:depth=3,pld"),
        ("PAPERS", "papers"),
        ("sps:num_tokens=4,schedule=constant", "sps:num_tokens=4,schedule=constant"),
    ],
)
def test_methods_are_found_in_any_case(given: str, spelled: str) -> None:
    assert RunSpec(methods=(given,)).methods == (spelled,)


def test_tasks_and_models_are_found_in_any_case(specbench: Specbench) -> None:
    assert RunSpec(tasks=("GSM8K", "MT-bench", "spec_bench/qa")).tasks == (
        "gsm8k",
        "mt_bench",
        "spec_bench/qa",
    )
    assert find_model("Vicuna-7B").name == "vicuna-7b"
    assert specbench("show", "EAGLE-2").out == specbench("show", "eagle2").out
