"""The measured cost curve of a machine whose times are known."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from specbench.engine.drafter import State
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.errors import UserError
from specbench.methods.medusa import Medusa
from specbench.settings.cost_model import CostModel
from specbench.settings.grids import STEP_ROWS
from specbench.tune import cost, read_curve
from specbench.tune.cost import _requests
from specbench.tune.engine_plan import make_engine_plan
from specbench.tune.fit_curve import variance_of_pairs
from tests.tune import WORK

VALUES = WORK | {"tasks": "gsm8k,mt_bench", "limit": 1, "max_new_tokens": 60}
TOKEN, SLOPE, PREFILL, DRAFT = 0.1, 1e-3, 0.02, 0.4


def step_s(rows: int, context: int) -> float:
    """The seconds of a step, with a jump at 17 rows that a smooth curve would miss."""
    return 1 + TOKEN * (rows - 1) + (rows > 16) + SLOPE * context


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which forwards of the target and drafts of Medusa advance."""
    time = [0.0]
    forward, prefill, propose = Target.forward, Target.prefill, Medusa.propose

    class Clock:
        def __init__(self, device: object) -> None: ...
        def now(self) -> float:
            return time[0]

    def timed_forward(self: Target, tree: DraftTree) -> Forward:
        time[0] += step_s(tree.num_nodes, self.cache.length)
        return forward(self, tree)

    def timed_prefill(self: Target, prompt_ids: Sequence[int], num_new: int = 0) -> Forward:
        time[0] += PREFILL * len(prompt_ids)
        return prefill(self, prompt_ids, num_new)

    def timed_propose(self: Medusa, state: State) -> DraftTree:
        time[0] += DRAFT
        return propose(self, state)

    monkeypatch.setattr(sys.modules["specbench.tune.cost"], "DeviceClock", Clock)
    monkeypatch.setattr(Target, "forward", timed_forward)
    monkeypatch.setattr(Target, "prefill", timed_prefill)
    monkeypatch.setattr(Medusa, "propose", timed_propose)
    return time


@pytest.mark.slow
def test_the_curve_has_the_times_of_a_planted_machine(machine: list[float], tmp_path: Path) -> None:
    folder = tmp_path / "cost"
    lines: list[str] = []
    given = VALUES | {"output": folder, "minutes": 1e-6, "say": lines.append}
    curve = cost("tiny", "medusa,recycling", **given)
    beginnings = [line.partition(":")[0] for line in lines]
    blocks = ["Block 1/6", "Block 2/6", "Block 3/6"]
    assert beginnings == ["recycling has no acceptance profile", *blocks]
    assert curve.rows == STEP_ROWS
    assert curve.threads == (1,)
    assert curve.about["threads"] == "1"
    assert {"machine", "dtype", "temperature", "torch", "specbench"} < {*curve.about}
    unit = step_s(1, curve.middle_context)
    assert curve.vanilla_s == pytest.approx(unit, rel=1e-3)
    model = CostModel(curve, 50)
    costs = model.costs(None, 0)
    for context in curve.lengths:
        for rows in (1, 2, 16, 17, 65):
            expected = step_s(rows, context) / unit
            assert model.step(costs, rows, context) == pytest.approx(expected, rel=1e-3)
    before_jump, after_jump = (model.step(costs, rows, curve.middle_context) for rows in (16, 17))
    assert after_jump - before_jump > 1
    size = len(curve.rows)
    assert costs[0, size] == pytest.approx(SLOPE / unit, rel=0.01)
    prefills = [PREFILL * length / unit for length in curve.lengths]
    assert costs[0, size + 2 :] == pytest.approx(prefills, rel=0.02)
    knots = [knot["rows"] for knot in curve.methods["medusa"].knots]
    assert knots == [2, 4, 8, 16, 32, 64]
    drafts = model.costs("medusa", 0)[0, costs.shape[1] :]
    assert drafts[: len(knots)] == pytest.approx([DRAFT / unit] * len(knots), abs=0.02)
    assert curve.process < 1e-4
    assert curve.num_pairs == 1
    assert read_curve(folder) == curve
    with pytest.raises(UserError, match="holds a cost curve"):
        cost("tiny", "medusa", output=folder, **VALUES)


def test_pairs_of_equal_settings_give_the_variance_of_a_process() -> None:
    assert variance_of_pairs([]) == 0
    assert variance_of_pairs([0.02, -0.04]) == pytest.approx((0.0004 + 0.0016) / 4)


def test_every_prompt_is_cut_to_the_room_that_timed_steps_leave_in_the_context() -> None:
    plan = make_engine_plan("tiny", "medusa", VALUES, offline=True).plan
    requests = _requests(plan, cast("Target", SimpleNamespace(context=250)))
    assert max(len(request.prompt_ids) + request.max_new_tokens for request in requests) == 250
    with pytest.raises(UserError, match=r"A cost curve times \d+ tokens .* has 9\."):
        _requests(plan, cast("Target", SimpleNamespace(context=9)))
