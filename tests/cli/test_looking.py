"""The commands that only look: list, show, doctor, fetch."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.registry import names
from tests.cli.conftest import Specbench


def test_lists_name_everything_there_is(specbench: Specbench) -> None:
    methods = specbench("list", "methods").out
    assert all(name in methods for name in names())
    assert "vicuna-13b" in specbench("list", "models").out
    assert "natural_questions" in specbench("list", "datasets").out
    assert specbench("list", "runs").code == 0


def test_a_method_is_shown_with_its_options(specbench: Specbench) -> None:
    said = specbench("show", "pld")
    assert "num_tokens" in said.out and "10" in said.out and "Prompt Lookup" in said.out


def test_a_model_is_shown_with_its_drafters(specbench: Specbench) -> None:
    said = specbench("show", "vicuna-13b")
    assert "yuhuili/EAGLE-Vicuna-13B-v1.3" in said.out and "13.02 billion" in said.out


def test_a_dataset_is_shown_with_its_source(specbench: Specbench) -> None:
    assert "openai/gsm8k" in specbench("show", "gsm8k").out


def test_doctor_compares_our_baseline_with_generate(specbench: Specbench, model: Path) -> None:
    said = specbench("doctor", "--model", model, "--offline")
    assert "vanilla in our loop equals generate" in said.out
    assert "no GPU, because" in said.out or "cuda" in said.out
    assert "ok      tree:" in said.out


def test_doctor_finds_a_baseline_that_says_other_things(
    specbench: Specbench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.bench import doctor

    monkeypatch.setattr(doctor, "_generate", lambda target, ids: [0])
    said = specbench("doctor", "--model", model, "--offline")
    assert said.code == 1
    assert "PROBLEM baseline tokens: vanilla in our loop DIFFERS from generate" in said.out


def test_a_fetch_that_fails_says_what_and_ends_with_2(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    from specbench.bench import cache
    from specbench.errors import UserError

    def refuse(*arguments: object) -> None:
        raise UserError("No network.", "Go online.")

    monkeypatch.setattr(cache, "_download", refuse)
    said = specbench("fetch", "--dataset", "gsm8k")
    assert (said.code, "No network." in said.err) == (2, True)
    assert specbench("fetch", "--dataset", "nothing").code == 2


def test_debug_shows_the_traceback(specbench: Specbench) -> None:
    from specbench.errors import UserError

    with pytest.raises(UserError):
        specbench("--debug", "show", "nothing")
