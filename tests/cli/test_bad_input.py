"""User errors: one message with the fix, exit code 2, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Specbench
from tests.support.checkpoint import save_checkpoint, write_prompts

SMALL = ("--template", "none", "--max-new-tokens", "4", "--offline", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--method", "pdl"), "No method 'pdl'. Did you mean 'pld'?"),
        (("run", "--method", "pld:ngrams=2"), "Did you mean 'ngram'?"),
        (("run", "--method", "pld:ngram=2,ngram=3"), "--method 'pld:ngram=2|3'"),
        (("run", "--method", "pld:ngram=two"), "not of type int"),
        (("run", "--method", "pld:ngram=0"), "too small"),
        (("run", "--method", "sps:schedule=steady"), "No value 'steady' of sps:schedule"),
        (("run", "--model", "vicuna"), "No model 'vicuna'"),
        (("run", "--model", "./nowhere"), "model folder"),
        (("run", "--dataset", "gsm9k"), "Did you mean 'gsm8k'?"),
        (("run", "--prompts", "gone.jsonl"), "gone.jsonl"),
        (("run", "--max-new-tokens", "0"), "--max-new-tokens 0"),
        (("run", "--temperature", "warm"), "--temperature"),
        (("run", "--device", "cuda:7"), "--device cuda:7 cannot be used"),
        (("run", "--device", "gpu"), "--device cuda"),
        (("run", "--resume"), "has no unfinished run"),
        (("run", "--resume", "--output", "gone"), "There is no run in gone"),
        (("list", "things"), "No list of 'things'"),
        (("run", "--method", "eagle2:depht=3"), "No option 'depht' of 'eagle2'. Did you"),
        (("run", "--max-new-tokens", "many"), "--max-new-tokens many is not a whole number"),
        (("run", "--threads", "many"), "--threads many is not a whole number"),
        (("list", "model"), "Did you mean 'models'?"),
        (("show", "foo"), "No method, model, dataset or run 'foo'"),
        (("show", "gsm9k"), "Did you mean 'gsm8k'?"),
        (("fetch", "--dataset", "nothing"), "'nothing'"),
        (("report", "gone"), "There is no run in gone"),
    ],
)
def test_a_wrong_name_or_value_is_one_message(
    specbench: Specbench, arguments: tuple[str, ...], message: str
) -> None:
    said = specbench(*arguments)
    assert said.code == 2
    assert message in said.err
    first, error, told = said.err.partition("Error: ")
    assert error and 2 <= len(told.splitlines()) <= 5  # the reason, and the fix below it
    assert not first or first.startswith("Starting: ")
    assert "Traceback" not in said.err
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("arguments", "is_offline", "message"),
    [
        (("--model", "nope"), False, "No model 'nope'"),
        (("--method", "pdl"), False, "Did you mean 'pld'?"),
        ((), True, "the run is offline"),
        (("--offline",), False, "the run is offline"),
        (("--prompts", "hub"), True, "the run is offline"),
        (("--prompts", "hub", "--offline"), False, "the run is offline"),
    ],
)
def test_nothing_is_fetched_before_names_are_known_nor_offline(
    specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...], is_offline: bool, message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if is_offline else "0")
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *given, **_: asked.append(given))
    said = specbench("run", "--dataset", "gsm8k", "--prompts", "paper", *arguments)
    assert said.code == 2 and message in said.err
    assert not asked


def test_a_name_of_the_option_dataset_that_others_use_is_told(specbench: Specbench) -> None:
    assert "--tasks (Possible options: --dataset)" in specbench("run", "--tasks", "gsm8k").err


def test_a_method_without_checkpoint_is_a_cell_beside_others(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    said = specbench(
        "run", "--model", model, "--method", "sps,pld", "--prompts", prompt_file, *SMALL
    )
    assert said.code == 0
    assert "no checkpoint" in said.out.lower()


def test_a_prompt_longer_than_the_context_is_named_with_its_length(
    specbench: Specbench, model: Path
) -> None:
    prompts = write_prompts(Path("long.jsonl"), ["short"], ["x" * 600])
    said = specbench("run", "--model", model, "--method", "pld", "--prompts", prompts, *SMALL)
    assert said.code == 2
    assert "601 tokens" in said.err and "512" in said.err


def test_a_draft_of_another_vocabulary_is_refused(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    other = save_checkpoint(tmp_path / "other", seed=1, layers=1)
    path = other / "tokenizer.json"
    path.write_text(path.read_text().replace('"a": ', '"a\\u00ad": ', 1))
    said = specbench("run", "--model", model, "--method", f"sps:weights={other}", "--prompts",
                     prompt_file, *SMALL)  # fmt: skip
    assert said.code == 2
    assert "vocabulary" in said.err


def test_everything_that_a_known_model_lacks_here_is_named_at_once(specbench: Specbench) -> None:
    words = "--method eagle2,medusa --model vicuna-13b --prompts bundled --offline"
    said = specbench("run", *words.split())
    assert said.code == 2
    for repo in ("lmsys/vicuna-13b-v1.3", "yuhuili/EAGLE-Vicuna-13B-v1.3",
                 "FasterDecoding/medusa-vicuna-13b-v1.3"):  # fmt: skip
        assert repo in said.err
    assert "specbench fetch --model vicuna-13b" in said.err
