"""Settings that `specbench tune` stored: their list, their removal, and their files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from specbench.measure import doctor
from specbench.measure.local.device import Device
from specbench.measure.spec import RunSpec
from specbench.settings.files import SettingsFile
from specbench.settings.tuned_settings import keep_settings, with_tuned
from tests.cli.conftest import Specbench
from tests.support.methods import parse_methods
from tests.support.own_cache import own_cache
from tests.support.texts import assert_in

FITS = {"machine": "Fast CPU, 2 cores", "threads": "2", "temperature": "T=0"}


def keep(model: str, **methods: dict[str, object]) -> Path:
    return keep_settings(SettingsFile(methods, "tuned 2026-11-30", model, FITS))


def has_tuned(model: str = "tiny") -> bool:
    """Return whether `--settings auto` finds settings for PLD."""
    (method,) = with_tuned(parse_methods(["pld"]), model, FITS["temperature"], lambda: FITS)
    return method.settings is not None


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, where older versions kept tunes."""
    own_cache(monkeypatch, tmp_path / "home")
    return tmp_path / "home" / "specbench"


def test_a_list_names_model_method_settings_machine_date_and_file(specbench: Specbench) -> None:
    path = keep("tiny", eagle2={"total_tokens": 12, "depth": 3}, medusa={"tree": [[0], [0, 0]]})
    said = specbench("list", "tunes")
    eagle2, medusa = (line for line in said.out.splitlines() if "tiny" in line)
    assert_in(
        eagle2,
        "eagle2",
        "total_tokens=12, depth=3",
        "Fast CPU, 2 cores, threads: 2",
        "T=0",
        "2026-11-30",
        path.name,
    )
    assert "medusa" in medusa and "tree=3-" in medusa
    assert f"Folder: {path.parent};" in said.err.replace("\n", "").replace("  ", " ")
    path.write_text("methods = 5")
    said = specbench("list", "tunes")
    assert said.code == 0 and "UNREADABLE" in said.out and path.name in said.out


def test_the_variable_moves_tunes_and_those_at_the_former_place_are_found(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, specbench: Specbench
) -> None:
    former = keep("tiny", pld={"num_tokens": 3})
    assert former.parent == cache / "tunes"
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "moved"))
    assert has_tuned()
    assert "num_tokens=3" in specbench("list", "tunes").out
    moved = keep("tiny", pld={"num_tokens": 7})
    assert moved == tmp_path / "moved" / "tunes" / former.name
    shown = specbench("list", "tunes").out
    assert "num_tokens=7" in shown and "num_tokens=3" not in shown


@pytest.mark.parametrize("name", ["tiny", "all", "FILE"])
def test_forgotten_settings_are_not_used_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, specbench: Specbench
) -> None:
    keep("tiny", pld={"num_tokens": 3})
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "moved"))
    path = keep("tiny", pld={"num_tokens": 7})
    keep("other", pld={"num_tokens": 2})
    said = specbench("tune", "--forget", path.name if name == "FILE" else name, code=0)
    assert "Forgotten: pld of tiny" in said.out
    assert not has_tuned() and has_tuned("other") is (name != "all")
    said = specbench("tune", "--forget", path.name, code=2)
    assert f"No tuned model or file '{path.name}'" in said.err


def test_doctor_names_the_cache_and_the_number_of_tunes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep("tiny", pld={"num_tokens": 3})
    setup = SimpleNamespace(device=Device("cpu"))
    monkeypatch.setattr(doctor, "make_engine_setup", lambda spec, is_offline: setup)
    lines = islice(doctor.examine(RunSpec(), is_offline=True), 4)
    (text,) = (line.text for line in lines if line.name == "cache")
    assert text == f"{cache} (SPECBENCH_CACHE moves it), tunes: 1"
