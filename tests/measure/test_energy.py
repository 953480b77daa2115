"""The energy of each method while only it repeats prompts, from a counter with ticks of 40 J."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from specbench.data.prompts import Prompt
from specbench.errors import UserError
from specbench.log.usage import MethodEnergy
from specbench.measure.cluster.setup import make_cluster_setup
from specbench.measure.local.energy import measure_energies
from specbench.measure.spec import RunSpec
from specbench.types import Completion, Request
from tests.machine.fake_nvml import MISSING
from tests.support.backend import answering, fake_plan
from tests.support.metered_gpu import BUSY_W, COUNTER, IDLE_W, MeteredGpu

PROMPTS = {
    "chat": [Prompt("chat/1", "", ("hello", "again")), Prompt("chat/2", "", ("bye",))],
    "maths": [Prompt("maths/1", "", ("1+1",))],
}
SECONDS = {"vanilla": 1.0, "pld": 0.4}
"""The seconds that an answer of two tokens takes."""


class Calls:
    """A backend that keeps the requests. Its answers take time on the fake GPU."""

    def __init__(self, gpu: MeteredGpu) -> None:
        self._gpu = gpu
        self.methods: list[str] = []
        self.requests: list[Request] = []

    def complete(self, method: str, request: Request) -> Completion:
        self.methods.append(method)
        self.requests.append(request)
        self._gpu.passes(SECONDS[method])
        return answering(1)(request)


Measure = Callable[..., tuple[list[MethodEnergy], Calls]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measure:
    def measure(
        temperatures: tuple[float, ...] = (0.0,), *, is_still: bool = False, **gpu: Any
    ) -> tuple[list[MethodEnergy], Calls]:
        card = MeteredGpu(monkeypatch, **gpu)
        card.is_still = is_still
        plan = fake_plan(
            {name: answering(1) for name in SECONDS}, PROMPTS, RunSpec(temperatures=temperatures)
        )
        calls = Calls(card)
        return [*measure_energies(plan, calls.complete, "cuda:0")], calls

    return measure


def test_each_method_repeats_whole_rounds_alone_for_six_seconds(measured: Measure) -> None:
    energies, calls = measured()
    turns = [(method, len([*group])) for method, group in groupby(calls.methods)]
    assert turns == [("vanilla", 6), ("pld", 15)]  # two rounds of 3 s, five of 1.2 s
    assert {request.prompt_ids for request in calls.requests} == {(1,)}, (
        "only first turns are repeated"
    )
    for energy, (method, num), seconds in zip(energies, turns, SECONDS.values(), strict=True):
        assert (energy.method, energy.num_tokens, energy.absent) == (method, 2 * num, "")
        assert energy.joules_per_token == pytest.approx(BUSY_W * seconds / 2)
        assert energy.duration_s == pytest.approx(num * seconds)
        assert (energy.tick_j, energy.idle_w, energy.meters) == (40.0, IDLE_W, ("GPU 0",))


def test_every_temperature_has_its_own_requests(measured: Measure) -> None:
    energies, calls = measured(temperatures=(0.0, 1.0))
    assert [(energy.method, energy.temperature) for energy in energies] == [
        ("vanilla", 0.0), ("pld", 0.0), ("vanilla", 1.0), ("pld", 1.0),
    ]  # fmt: skip
    drawn = [request.sampling.temperature for request in calls.requests]
    assert drawn == sorted(drawn) and {*drawn} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ({"tenths": 3}, "two ticks of 120 J are more than 5 % of 2"),
        ({"is_still": True}, "the counter stood still or was lost: GPU 0"),
        ({COUNTER: MISSING}, "a GPU has no counter, or is partitioned (MIG)"),
        ({"nvmlDeviceGetMigMode": (1, 1)}, "a GPU has no counter, or is partitioned (MIG)"),
    ],
)
def test_energy_without_a_counter_is_absent_with_the_reason(
    gpu: dict[str, Any], reason: str, measured: Measure
) -> None:
    energies, calls = measured(**gpu)
    assert all(energy.absent.startswith(reason) for energy in energies)
    assert {energy.joules_per_token for energy in energies} == {None}
    has_counter = gpu.keys() & {"tenths", "is_still"}
    assert bool(calls.methods) == bool(has_counter), "without a counter no time is lost"


def test_a_failed_method_leaves_the_energy_of_the_others(
    measured: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Calls.complete

    def complete(calls: Calls, method: str, request: Request) -> Completion:
        if method == "vanilla":
            raise RuntimeError("the head is on fire")
        return answer(calls, method, request)

    monkeypatch.setattr(Calls, "complete", complete)
    energies, _ = measured()
    assert "the head is on fire" in energies[0].absent
    assert energies[1].joules_per_token == pytest.approx(BUSY_W * 0.4 / 2)


def test_workers_of_a_cluster_have_no_counter_of_their_own() -> None:
    with pytest.raises(UserError, match="--energy is for one machine"):
        make_cluster_setup(None, RunSpec(energy=True), is_offline=True)
