"""A run records which layers of the target a drafter read, and its checkpoint's layout."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from specbench.cli.catalog import _execution
from specbench.engine.target import Target
from specbench.log.backend import ExecutionHeader
from specbench.measure import methods
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import LoadedEngine, broken_drafter
from specbench.measure.local.peak_memory import MemoryLedger
from specbench.models.cards import known_models
from specbench.types import Request
from tests.methods.building import build_random
from tests.support.headers import make_header
from tests.support.models import random_llama
from tests.support.weights import build


def backend_of(target: Target, drafters: dict[str, Any]) -> EngineBackend:
    mode = SimpleNamespace(name="eager", reason=None)
    setup = SimpleNamespace(
        has_phases=False, is_traced=False, threads=1, mode=mode, settings="paper", methods=()
    )
    loaded = LoadedEngine(target, drafters, 0.0, MemoryLedger(target))
    return EngineBackend(cast(Any, setup), loaded=loaded)


def test_the_layers_in_effect_are_recorded_and_shown(tmp_path: Path) -> None:
    target = Target(random_llama(layers=8))
    drafters = {name: build(name, target, tmp_path) for name in ("vanilla", "eagle3")}
    drafters["pld"] = broken_drafter("it does not import")
    with backend_of(target, drafters) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        found = backend.describe().execution
    layers = drafters["eagle3"].needs.layer_inputs
    assert layers and found["eagle3"].layer_inputs == layers
    assert found["vanilla"].layer_inputs == found["pld"].layer_inputs == ()
    assert found["eagle3"].weights_layout == "SafeAILab"
    assert found["vanilla"].weights_layout == ""
    assert "layer_inputs" not in msgspec.to_builtins(found["vanilla"])


def test_guessed_layers_and_unknown_fields_are_recorded_shown_and_told(tmp_path: Path) -> None:
    target = Target(random_llama(layers=8))
    fields = {"eagle_aux_hidden_state_layer_ids": None, "zeta": 1}
    drafters = {"eagle3": build_random("eagle3", target, tmp_path, fields)}
    with backend_of(target, drafters) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        info = backend.describe()
    assert info.execution["eagle3"].has_guessed_layers
    about = make_header({"methods": {"eagle3": {"options": {"layers": ""}}}}).methods
    assert _execution(about["eagle3"], info.execution["eagle3"])[0] == "layers=2+4+5 (guessed)"
    assert info.warnings[0].startswith("eagle3: Its config has fields that are not known: zeta.")
    assert info.warnings[1].startswith("eagle3: Its config names no target layers")


def test_a_card_names_the_layers_of_a_head_whose_config_is_ambiguous(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(methods, "resolve", lambda *args, **options: tmp_path)
    monkeypatch.setattr(methods, "check_checkpoint", lambda *args, **options: None)
    card = known_models()["gpt-oss-120b"]
    spec = cast(Any, SimpleNamespace(is_baseline_run=False, weights="hub"))
    find = partial(methods.find_checkpoint, card, is_offline=True)
    repo = "nvidia/gpt-oss-120b-Eagle3-long-context"
    for given, layers in (("", "1+17+32"), (",layers=1+2+3", "1+2+3")):
        named = methods.parse_methods([f"eagle3:weights={repo}{given}"])
        (one,) = methods.select_methods(spec, card, named, resolve_weights=find).methods
        assert one.options.layers == layers


def test_a_run_shows_the_layers_that_no_option_named() -> None:
    about = make_header({"methods": {"eagle3": {"options": {"depth": 7, "layers": ""}}}}).methods
    assert _execution(about["eagle3"], None) == ("depth=7", "none")
    mode = ExecutionHeader("eager", None, (2, 16, 29), "speculators")
    shown = ("depth=7, layers=2+16+29", "none, speculators layout")
    assert _execution(about["eagle3"], mode) == shown
