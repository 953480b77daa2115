"""The warm-up records whatever a sample will need."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specbench.bench.spec import RunSpec
from specbench.bench.warm_up import warm_up
from specbench.engine import graphs, rehearsal, tree
from specbench.engine.decode import decode
from specbench.engine.target import Target
from specbench.types import Request
from tests.support.models import prompts, random_llama
from tests.support.tracing import TraceRecorder
from tests.support.weights import build

BUDGET = 40


@pytest.mark.slow
def test_nothing_is_recorded_while_samples_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (graphs, rehearsal):
        monkeypatch.setattr(module, "BUCKET", 160)
    for module in (tree, rehearsal):
        monkeypatch.setattr(module, "NUM_NODES", (1, 2, 4, 8, 12, 60))
    recorded = graphs.Graphs(TraceRecorder())
    target = Target(random_llama(layers=8), recorded)
    completers = {
        name: partial(decode, target, build(name, target, tmp_path))
        for name in ("vanilla", "sps", "eagle2")
    }
    plan: Any = SimpleNamespace(
        spec=RunSpec(), max_new_tokens=BUDGET, prompts={"task": [SimpleNamespace(turns=("x",))]},
        setup=SimpleNamespace(
            mode=SimpleNamespace(name="graph", why_no_graphs=""),
            codec=SimpleNamespace(render=lambda messages: prompts()[2]),
        ),
    )  # fmt: skip
    modes = warm_up(plan, completers, target)
    assert modes == {name: {"mode": "graph", "reason": None} for name in completers}
    for complete in completers.values():
        for prompt in prompts():
            complete(Request(prompt, BUDGET))
    assert recorded.num_late == 0
