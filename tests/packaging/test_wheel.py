"""The wheel is complete: it runs without the checkout."""

import json
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from specbench import registry
from specbench.zoo import TINY
from tests.packaging.conftest import FOLDERS
from tests.packaging.shell import output, where
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow


def test_the_wheel_holds_every_module_weight_card_and_prompt(wheel: Path) -> None:
    wanted = {
        str(
            path.relative_to(ROOT)
            if folder == "specbench"
            else "specbench" / path.relative_to(ROOT)
        )
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    embedded = str((TINY / "target" / "model.safetensors").relative_to(ROOT))
    assert {"specbench/datasets/cards/gsm8k.toml", "specbench/methods/pld.py", embedded} <= wanted
    assert wanted - set(ZipFile(wheel).namelist()) == set()


def test_the_wheel_contains_one_package_and_no_tools(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"specbench"}
    assert "specbench/datasets/__init__.py" not in names
    assert not [name for name in names if "tools" in Path(name).parts]


def test_an_installed_wheel_lists_trains_and_runs_what_it_holds(
    installed_wheel: Path, tmp_path: Path
) -> None:
    for file in where(tmp_path, path=[installed_wheel]):
        assert file.is_relative_to(installed_wheel)

    def specbench(words: str) -> str:
        command = [sys.executable, "-m", "specbench", *words.split()]
        return output(command, tmp_path, path=[installed_wheel])

    listed = [line for line in specbench("list methods").splitlines() if line[0] > " "]
    assert [line.split()[0] for line in listed[1:]] == registry.names()
    assert "natural_questions" in specbench("list datasets")
    chat = {"turns": ["Add 2 and 3."], "reference": ["That is 5."]}
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 4)
    train = "train medusa --model tiny --data chats.jsonl --out head --steps 2 --rows 2"
    said = specbench(f"{train} --length 64 --device cpu --offline")
    assert said.startswith("Head: head\nRun it: ")
    run = "run --method pld,medusa:weights=head --dataset gsm8k --limit 1 --repeats 1"
    shown = specbench(f"{run} --max-new-tokens 8 --device cpu --offline")
    assert "PLD" in shown and "Medusa" in shown
    (samples,) = tmp_path.glob("results/runs/*/samples.jsonl")
    assert len(samples.read_text().splitlines()) == 3
