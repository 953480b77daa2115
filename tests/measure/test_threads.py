"""The number of CPU threads is the user's, the resumed run's, or the fastest for a step."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specbench.log.machine import Threads
from specbench.machine import threads as machine
from specbench.measure.local import threads
from tests.packaging.shell import ROOT, python
from tests.support.models import random_target

MEASURED = Threads(2, "measured", "brief", {"4": 0.5, "2": 0.2, "1": 0.25})


@pytest.fixture(autouse=True)
def _same_number_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Seconds of a step by number of threads, on a machine with four, without a user's number."""
    taken = {4: 0.5, 2: 0.2, 1: 0.25}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "thread_counts", lambda: [4, 2, 1])
    monkeypatch.setattr(threads, "step_s", lambda target, count: taken[count])
    return taken


def test_the_fastest_number_is_taken_and_all_times_are_kept(steps: dict[int, float]) -> None:
    chosen = threads.choose_threads(random_target(), None)
    assert (chosen.num, chosen.chosen_by, torch.get_num_threads()) == (2, "measured", 2)
    assert chosen.step_s == {str(count): seconds for count, seconds in steps.items()}


def test_of_equally_fast_numbers_the_larger_is_taken_for_the_sake_of_trees(
    steps: dict[int, float],
) -> None:
    steps.update({4: 0.5, 2: 0.209, 1: 0.2})
    assert threads.choose_threads(random_target(), None).num == 2


def test_fewer_threads_are_not_tried_once_they_are_much_slower() -> None:
    taken = {8: 1.0, 4: 1.2, 2: 1.6, 1: 3.0}
    assert threads.fastest(taken, taken.__getitem__) == {8: 1.0, 4: 1.2, 2: 1.6}
    crowded = {8: 90.0, 4: 40.0, 2: 4.0, 1: 1.0}
    assert min(threads.fastest(crowded, crowded.__getitem__), key=crowded.__getitem__) == 1


def test_the_users_number_wins_then_that_of_the_resumed_run(
    steps: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = random_target()
    given = threads.choose_threads(target, 1, MEASURED)
    assert (given.num, given.chosen_by, given.step_s) == (1, "option", {})
    assert threads.choose_threads(target, None, MEASURED) == MEASURED
    assert torch.get_num_threads() == MEASURED.num
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.choose_threads(target, None).chosen_by == "environment"


def test_a_step_is_timed_with_the_number_of_threads_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "LEAST_S", 0.0)
    assert threads.step_s(random_target(), 2) > 0
    assert torch.get_num_threads() == 2


def test_all_threads_the_cores_and_powers_of_two_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_threads", lambda: 12)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 6)
    assert machine.thread_counts() == [12, 8, 6, 4, 2, 1]
    monkeypatch.setattr(machine, "usable_threads", lambda: 2)
    assert machine.thread_counts() == [2, 1]


@pytest.mark.parametrize(
    ("own", "loops", "told"),
    [
        ({}, "5000", "brief"),
        ({"OMP_WAIT_POLICY": "passive"}, None, "passive"),
        ({"OMP_WAIT_POLICY": "active"}, None, "own"),
        ({"GOMP_SPINCOUNT": "9"}, "9", "own"),
        ({"KMP_BLOCKTIME": "0"}, None, "own"),
    ],
)
def test_threads_spin_briefly_while_they_wait_unless_the_user_says_otherwise(
    own: dict[str, str], loops: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    machine.wait_briefly(own)
    assert (own.get("GOMP_SPINCOUNT"), machine.waiting(own)) == (loops, told)


@pytest.mark.parametrize("own", [{}, {"GOMP_SPINCOUNT": "9"}, {"OMP_WAIT_POLICY": "passive"}])
def test_other_programs_get_the_environment_as_the_user_gave_it(
    own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    ours = {**own, "HOME": "/"}
    machine.wait_briefly(ours)
    assert machine.without_waiting(ours) == {**own, "HOME": "/"}


def test_after_torch_was_imported_nothing_is_set_and_that_is_told() -> None:
    environment: dict[str, str] = {}
    machine.wait_briefly(environment)
    assert environment == {} and machine.waiting(environment) == "unknown"


def test_the_command_line_limits_the_wait_before_torch_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['specbench', '--version']; import specbench.cli as cli, os\n"
        "assert 'torch' not in sys.modules\n"
        "try: cli.main()\n"
        "finally: assert 'torch' not in sys.modules; print(os.environ['GOMP_SPINCOUNT'])"
    )
    openmp = ("OMP_", "GOMP_", "KMP_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(openmp)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("5000\n"), done.stderr


def test_the_python_api_leaves_torch_to_be_imported_after_the_policy_is_set() -> None:
    code = "import sys, specbench; specbench.run, specbench.load; print('torch' in sys.modules)"
    assert python(code, ROOT) == "False"
