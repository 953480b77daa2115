"""The commands list, show, doctor, fetch, and the options of the program itself."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ReferenceType, ref

import pytest
from msgspec import structs

from specbench import __version__
from specbench.cli.progress import progress_view
from specbench.data import cache
from specbench.errors import UserError
from specbench.machine import environment
from specbench.measure import doctor
from specbench.measure.local.device import Device
from specbench.measure.local.engine_load import load_engine
from specbench.measure.spec import RunSpec
from specbench.registry import names
from tests.cli.conftest import Specbench


def test_lists_name_everything_that_exists(specbench: Specbench) -> None:
    methods = specbench("list", "methods").out
    assert all(name in methods for name in names())
    assert "lmsys/vicuna-33b-v1.3 with sps, medusa" in specbench("list", "models").out
    assert "natural_questions" in specbench("list", "datasets").out
    assert specbench("list", "runs").code == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pld", ("num_tokens", "Prompt Lookup")),
        ("eagle2", ("Li et al. 2024, EAGLE-2", "https://arxiv.org/abs/2406.16858")),
        ("vicuna-13b", ("yuhuili/EAGLE-Vicuna-13B-v1.3", "13.02 billion")),
        ("qwen3-8b", ("eagle3:weights=REPO  or AngelSlim/Qwen3-8B_eagle3", "or RedHatAI/Qwen3-8B")),
        ("tiny", ("embedded", "this project trained", "the tokenizer's own")),
        ("gsm8k", ("openai/gsm8k",)),
    ],
)
def test_show_has_the_facts_about_a_name(
    specbench: Specbench, name: str, expected: tuple[str, ...]
) -> None:
    shown = specbench("show", name).out
    assert all(text in shown for text in expected)


@pytest.mark.slow
def test_doctor_compares_our_baseline_with_generate(
    specbench: Specbench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, num_alive = list[ReferenceType[Any]](), list[int]()

    def watched(setup: Any) -> Any:
        num_alive.append(sum(reference() is not None for reference in loaded))
        engine = load_engine(setup)
        loaded.append(ref(engine.target.model))
        return engine

    monkeypatch.setattr("specbench.measure.local.engine.load_engine", watched)
    monkeypatch.setattr(doctor, "PROMPTS", doctor.PROMPTS[:1])
    said = specbench("doctor", "--model", model, "--offline")
    assert num_alive == [0, 0, 0]
    assert "vanilla's output equals generate's" in said.out
    assert "no GPU, because" in said.out or "cuda" in said.out
    assert "ok      tree:" in said.out
    plain = next(line for line in said.out.splitlines() if "kernels plain" in line)
    assert plain.startswith("ok") and plain.endswith("; the same tokens as with torch")
    assert "ok      kernels torch: " in said.out
    monkeypatch.setattr(doctor, "generate", lambda target, ids, num_tokens: [0])
    said = specbench("doctor", "--model", model, "--offline", code=1)
    assert "PROBLEM baseline tokens: vanilla's output DIFFERS from generate's" in said.out
    assert "times as fast as generate" in said.out and "Not ready: " in said.out


@pytest.mark.parametrize(("given", "asked"), [("auto", "float32"), ("float16", "float16")])
def test_doctor_compares_tokens_of_the_embedded_model_in_float32(
    given: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: RunSpec, *, is_offline: bool) -> None:
        raise UserError(spec.dtype, "")

    monkeypatch.setattr(doctor, "make_engine_setup", refuse)
    with pytest.raises(UserError, match=asked):
        list(doctor.examine(RunSpec(model="tiny", dtype=given), is_offline=True))


def see(monkeypatch: pytest.MonkeyPatch, device: str, num: int, **torch: str) -> dict[str, str]:
    """The first `num` findings of doctor on this device, if torch has these properties."""
    facts = environment.capture()
    facts = structs.replace(facts, torch=structs.replace(facts.torch, **torch))
    monkeypatch.setattr(environment, "capture", lambda: facts)
    setup = SimpleNamespace(device=Device(device))
    monkeypatch.setattr(doctor, "make_engine_setup", lambda spec, is_offline: setup)
    return {
        line.name: line.text for line in islice(doctor.examine(RunSpec(), is_offline=True), num)
    }


@pytest.mark.parametrize(
    ("version", "device", "is_told"),
    [("2.8.1", "cuda:0", True), ("2.10.0", "cuda:0", False), ("2.8.1", "cpu", False)],
)
def test_doctor_recommends_a_torch_whose_launches_overlap(
    version: str, device: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ("torch" in see(monkeypatch, device, 2, version=version)) is is_told


def test_a_fetch_without_network_does_not_suggest_a_fetch(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(task: str, source: object, path: object, where: str) -> None:
        raise UserError(f"The paper prompts of {task} cannot be downloaded.", where)

    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(cache, "_download", refuse)
    said = specbench("fetch", code=2)
    assert said.err.count("cannot be downloaded") == 7
    assert "specbench fetch" not in said.err
    assert said.err.count("Run the command again to fetch what is missing") == 1


def test_the_version_is_printed(specbench: Specbench) -> None:
    assert specbench("--version").out == f"specbench {__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run --method pld,sp", "pld,sps"),
        ("run --model vicuna-13", "vicuna-13b"),
        ("run --dataset gs", "gsm8k"),
        ("report --format la", "latex"),
        ("list mo", "models"),
        ("show eagle3", "eagle3"),
        ("report results/runs/mi", "results/runs/mine"),
    ],
)
def test_a_shell_completes_names(
    specbench: Specbench, words: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("results/runs/mine").mkdir(parents=True)
    Path("results/runs/mine/run.json").write_text("{}")
    monkeypatch.setenv("_SPECBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"specbench {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert expected in specbench().out.split()


def test_debug_shows_the_traceback_and_then_the_message(
    specbench: Specbench, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        for words in (("--debug", "show", "nothing"), ("show", "nothing", "--debug")):
            said = specbench(*words)
            assert said.code == 2 and said.err.startswith("Traceback (most recent call last):")
            assert "\nError: No method, model, dataset or run 'nothing'.\n" in said.err
        quiet = progress_view(is_quiet=True)
        quiet.message("Traceback of a method")
        assert capsys.readouterr().err == "Traceback of a method\n"
    finally:
        logging.getLogger("specbench").setLevel(logging.NOTSET)
    quiet.message("Warming up")
    assert not capsys.readouterr().err
