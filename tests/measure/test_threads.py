"""The number of CPU threads is the user's, the resumed run's, or the fastest for each step."""

import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.engine.clock import DeviceClock, Stopwatch
from specbench.engine.drafter import Drafter, State
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.log.backend import RooflineHeader
from specbench.log.machine import Threads
from specbench.machine import threads as machine
from specbench.measure.local import choices, engine, threads, trial
from specbench.measure.local.trial import Trial
from specbench.types import Request
from tests.packaging.shell import python
from tests.support.methods import parse_methods
from tests.support.models import engine_backend, random_target
from tests.support.paths import ROOT

MEASURED = Threads(2, "measured", "brief", {"4": 0.5, "2": 0.2, "1": 0.25})


@pytest.fixture(autouse=True)
def _same_number_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Clock:
    """A clock that the steps of a machine advance. Their times vary by chance."""

    def __init__(self, seed: int = 0) -> None:
        self.seconds = 0.0
        self._draw = random.Random(seed)

    def __call__(self) -> float:
        return self.seconds

    def step(self, seconds: float) -> float:
        waited = 4 * min(seconds, 0.01) if self._draw.random() < 0.1 else 0.0
        taken = seconds * self._draw.lognormvariate(0, 0.05) + waited
        self.seconds += taken
        return taken


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of a machine with four processors, where the user gave no number of threads."""
    planted = Clock()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "thread_counts", lambda: [4, 2, 1])
    monkeypatch.setattr(threads, "perf_counter", planted)
    monkeypatch.setattr(trial, "perf_counter", planted)
    monkeypatch.setattr(threads, "sleep", planted.step)
    monkeypatch.setattr(threads, "share_of_others", lambda last, now: 0.0)
    return planted


@pytest.mark.parametrize(
    ("taken", "kept", "best"),
    [
        ({2: 0.0100, 1: 0.0112}, 1, 2),
        ({2: 0.0010, 1: 0.0017}, 1, 2),
        ({2: 0.0100, 1: 0.0100}, 1, 1),
        ({2: 0.0100, 1: 0.0103}, 1, 1),
        ({2: 0.9, 1: 1.0}, 1, 1),
        ({8: 0.9, 4: 0.4, 2: 0.04, 1: 0.01}, 8, 1),
        ({8: 0.010, 4: 0.012, 2: 0.018, 1: 0.030}, 8, 8),
        ({8: 0.05, 4: 0.012, 2: 0.010, 1: 0.014}, 1, 2),
    ],
)
def test_a_number_of_threads_stays_unless_another_is_far_faster(
    taken: dict[int, float], kept: int, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []
    for seed in range(10):
        clock = Clock(seed)
        monkeypatch.setattr(trial, "perf_counter", clock)
        tried = Trial([*taken], kept, seconds=5.0)
        while (count := tried.next()) is not None:
            tried.add(count, clock.step(taken[count]))
        chosen.append(tried.best)
        assert clock.seconds <= 5.0 + 2 * max(taken.values())
    assert chosen == [best] * 10


def test_a_slow_moment_does_not_decide_the_number_of_threads(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> float:
        taken = {4: 5.0, 2: 3.0, 1: 1.0} if clock() < 0.4 else {4: 0.5, 2: 0.2, 1: 0.21}
        return clock.step(taken[torch.get_num_threads()] / 1e3)

    monkeypatch.setattr(threads, "token_step", lambda target: step)
    chosen = threads.choose_threads(random_target(), None)
    assert (chosen.num, chosen.chosen_by, torch.get_num_threads()) == (2, "measured", 2)
    assert {*chosen.step_s} == {"4", "2", "1"}


@pytest.mark.parametrize(("share", "num"), [(0.0, 4), (0.5, 1)])
def test_beside_another_program_a_number_has_to_stay_fast(
    share: float, num: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with many threads is fast after one with few, and slow after another with many."""
    last = 1

    def step() -> float:
        nonlocal last
        now, before = torch.get_num_threads(), last
        last = now
        is_held_up = now > 1 and before == now
        return clock.step(0.0107 if is_held_up else {4: 0.0006, 2: 0.0008, 1: 0.0011}[now])

    monkeypatch.setattr(threads, "token_step", lambda *given: step)
    monkeypatch.setattr(threads, "share_of_others", lambda last, now: share)
    chosen = threads.choose_threads(random_target(), None)
    assert (chosen.num, chosen.share_of_others) == (num, share)
    assert threads._counts_beside(chosen) == ([1] if share else [4, 2, 1])


def test_each_method_has_its_own_number_of_threads(
    clock: Clock,
) -> None:
    taken = {
        "pld": {4: 9.0, 2: 2.0, 1: 1.0},
        "medusa": {4: 3.0, 2: 4.0, 1: 6.0},
        "sps": {4: 3.0, 2: 1.98, 1: 2.0},
        "prefill": {4: 3.0, 2: 4.0, 1: 8.0},
    }
    decoded: list[str] = []

    def step(name: str) -> float:
        return clock.step(taken[name][torch.get_num_threads()] / 1e3)

    def decode(method: str, watch: Stopwatch) -> None:
        decoded.append(method)
        if method == "broken":
            raise ValueError("broken")
        watch.start()
        clock.step(9.0 / 1e3)  # the drafter reads the prompt
        for _ in range(20):
            watch.lap("draft")
            step(method)
            watch.lap("host")

    rows = {"pld": 8, "medusa": 64, "hydra": 64, "sps": 4, "broken": 16}
    chosen = threads.choose_for_methods(
        Threads(1, "measured", "brief"), lambda: step("prefill"), decode, rows
    )
    assert (chosen.num, chosen.prefill, torch.get_num_threads()) == (1, 4, 1)
    assert chosen.methods == {"pld": 1, "medusa": 4, "hydra": 4, "sps": 1, "broken": 1}
    assert chosen.own == {"medusa": 4, "hydra": 4}
    assert chosen.method_step_s["hydra"] == chosen.method_step_s["medusa"]
    assert chosen.method_step_s["medusa"]["1"] == pytest.approx(0.006, rel=0.2)
    assert "hydra" not in decoded and decoded.count("broken") == 1
    assert chosen.text == "1, 4 for prefills, 4 for medusa, 4 for hydra"
    assert clock.seconds < 5.0


def test_prefill_and_decoding_have_their_own_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[tuple[str, int]] = []

    class Watched(Drafter):
        def propose(self, state: State) -> DraftTree:
            used.append(("draft", torch.get_num_threads()))
            return state.chain()

    def prefill(self: Target, *given: Any, **named: Any) -> Forward:
        used.append(("prefill", torch.get_num_threads()))
        return real_prefill(self, *given, **named)

    def slow_set(count: int) -> None:
        torch.set_num_threads(count)
        late.append(1000.0)

    def clock(device: object = None) -> float:
        return time.perf_counter() + sum(late)

    late = [0.0]
    real_prefill = Target.prefill
    monkeypatch.setattr(Target, "prefill", prefill)
    monkeypatch.setattr(engine, "set_threads", slow_set)
    monkeypatch.setattr(engine, "outer_clock", clock)
    monkeypatch.setattr(DeviceClock, "now", clock)
    with engine_backend(random_target(), {"own": Watched(), "other": Watched()}) as backend:
        chosen = Threads(1, "measured", "brief", prefill=2, methods={"own": 3})
        backend._choices = replace(backend._choices, threads=chosen)
        for method, number in (("own", 3), ("other", 1)):
            used.clear()
            done = backend.complete(method, Request((1, 2, 3), 3))
            assert used == [("prefill", 2), *[("draft", number)] * len(done.steps)]
            assert done.wall_s <= (done.outer_s or 0.0) < 1000.0


def test_the_users_number_overrides_the_resumed_runs(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = random_target()
    given = threads.choose_threads(target, 1, MEASURED)
    assert (given.num, given.chosen_by, given.step_s) == (1, "option", {})
    assert threads.choose_threads(target, None, MEASURED) == MEASURED
    assert torch.get_num_threads() == MEASURED.num
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.choose_threads(target, None).chosen_by == "environment"


def test_a_resumed_run_keeps_its_threads_and_has_the_bandwidth_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bandwidth(device: torch.device, block: int) -> float:
        return 1e9 * torch.get_num_threads()

    monkeypatch.setattr("specbench.machine.bandwidth.bandwidth", bandwidth)
    before = Threads(2, "measured", "brief", methods={"pld": 1, "sps": 2})
    with engine_backend(random_target(), {}) as backend:
        backend._choices = replace(backend._choices, threads=before, are_threads_kept=True)
        backend._info.roofline = RooflineHeader(2e9, 0, 0, 0, is_mixture_of_experts=False)
        backend.warm_up([Request((1, 5, 6), 4)])
        description = backend.describe()
    assert description.threads == before
    assert description.roofline and description.roofline.bandwidth_by_threads == {
        "1": 1e9,
        "2": 2e9,
    }


def test_a_failed_trial_restores_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []

    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(choices, "set_threads", used.append)
    monkeypatch.setattr("specbench.engine.decode.decode", fail)
    (method,) = parse_methods(["pld"])
    step_s = choices._prepare_trial(random_target(), Request((1, 5, 6), 4), 2, method, 1)
    with pytest.raises(RuntimeError):
        step_s()
    assert used == [1, 2]


def test_all_threads_the_cores_and_powers_of_two_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_threads", lambda: 12)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 6)
    assert machine.thread_counts() == [12, 8, 6, 4, 2, 1]
    monkeypatch.setattr(machine, "usable_threads", lambda: 2)
    assert machine.thread_counts() == [2, 1]


@pytest.mark.parametrize(
    ("given", "loops", "waiting"),
    [
        ({}, "10000", "brief"),
        ({"OMP_WAIT_POLICY": "passive"}, None, "passive"),
        ({"OMP_WAIT_POLICY": "active"}, None, "own"),
        ({"GOMP_SPINCOUNT": "9"}, "9", "own"),
        ({"KMP_BLOCKTIME": "0"}, None, "own"),
    ],
)
def test_waiting_threads_spin_briefly_by_default(
    given: dict[str, str], loops: str | None, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs get the user's environment unchanged."""
    monkeypatch.delitem(sys.modules, "torch")
    variables = {**given, "HOME": "/"}
    machine.wait_briefly(variables)
    assert (variables.get("GOMP_SPINCOUNT"), machine.waiting(variables)) == (loops, waiting)
    assert machine.without_waiting(variables) == {**given, "HOME": "/"}


def test_nothing_is_set_after_torch_was_imported() -> None:
    environment: dict[str, str] = {}
    machine.wait_briefly(environment)
    assert environment == {} and machine.waiting(environment) == "unknown"


def test_neither_api_nor_command_line_loads_torch_before_the_wait_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = (
        "import os, sys, specbench; specbench.run, specbench.load\n"
        "assert 'torch' not in sys.modules\n"
        "sys.argv = ['specbench', '--version']; import specbench.cli as cli\n"
        "try: cli.main()\n"
        "finally: assert 'torch' not in sys.modules; print(os.environ['GOMP_SPINCOUNT'])"
    )
    for name in [*os.environ]:
        if name.startswith(("OMP_", "GOMP_", "KMP_")):
            monkeypatch.delenv(name)
    assert python(code, ROOT).endswith("10000")
