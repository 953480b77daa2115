"""A run records which layers of the target a drafter read, and its checkpoint's layout."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from specbench.cli.catalog import _execution
from specbench.engine.target import Target
from specbench.log.backend import ExecutionHeader
from specbench.measure.local.drafters import broken_drafter
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import LoadedEngine
from specbench.measure.local.peak_memory import MemoryLedger
from specbench.types import Request
from tests.support.headers import make_header
from tests.support.models import random_llama
from tests.support.weights import build


def test_the_layers_in_effect_are_recorded_and_shown(tmp_path: Path) -> None:
    target = Target(random_llama(layers=8))
    drafters = {name: build(name, target, tmp_path) for name in ("vanilla", "eagle3")}
    drafters["pld"] = broken_drafter("it does not import")
    mode = SimpleNamespace(name="eager", reason=None)
    setup = SimpleNamespace(has_phases=False, is_traced=False, threads=1, mode=mode)
    loaded = LoadedEngine(target, drafters, 0.0, MemoryLedger(target))
    with EngineBackend(cast(Any, setup), loaded=loaded) as backend:
        backend.warm_up([Request((1, 5, 6), 4)])
        found = backend.describe().execution
    layers = drafters["eagle3"].needs.layer_inputs
    assert layers and found["eagle3"].layer_inputs == layers
    assert found["vanilla"].layer_inputs == found["pld"].layer_inputs == ()
    assert found["eagle3"].weights_layout == "SafeAILab"
    assert found["vanilla"].weights_layout == ""
    assert "layer_inputs" not in msgspec.to_builtins(found["vanilla"])


def test_a_run_shows_the_layers_that_no_option_named() -> None:
    about = make_header({"methods": {"eagle3": {"options": {"depth": 7, "layers": ""}}}}).methods
    assert _execution(about["eagle3"], None) == ("depth=7", "none")
    mode = ExecutionHeader("eager", None, (2, 16, 29), "speculators")
    shown = ("depth=7, layers=2+16+29", "none, speculators layout")
    assert _execution(about["eagle3"], mode) == shown
