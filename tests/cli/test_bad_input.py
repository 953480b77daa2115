"""User errors that are no rows of mistakes.txt: one message with the fix, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Specbench
from tests.support.checkpoint import save_checkpoint


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("rn", "No such command 'rn'. Did you mean 'run'?"),
        ("run --metod pld", "No such option: --metod (Possible options: --method,"),
        ("list", "Missing argument 'KIND'."),
    ],
)
def test_a_wrong_command_or_option_is_told_with_the_likely_one(
    specbench: Specbench, words: str, told: str
) -> None:
    said = specbench(*words.split())
    assert said.code == 2 and told in said.err


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
def test_nothing_is_fetched_before_names_are_known_nor_offline(
    specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: str, is_offline: bool, message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if is_offline else "0")
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *given, **_: asked.append(given))
    said = specbench("run", "--dataset", "gsm8k", "--prompts", "paper", *arguments.split())
    assert said.code == 2 and message in said.err
    assert not asked


def test_a_draft_of_another_vocabulary_is_refused(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    other = save_checkpoint(tmp_path / "other", seed=1, layers=1)
    path = other / "tokenizer.json"
    path.write_text(path.read_text().replace('"a": ', '"a\\u00ad": ', 1))
    method = f"sps:weights={other}"
    said = specbench("run", "--model", model, "--method", method, "--prompts", prompt_file)
    assert said.code == 2
    assert "vocabulary" in said.err
