"""The energy of completions: of a single one, and of a method that repeats prompts alone.

A counter advances in ticks. Methods take turns at each prompt, so the ticks mix the energy of one
answer with that of the next. A method alone is metered over many ticks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from msgspec.structs import replace as replace_part

from specbench.errors import SpecbenchError, UserError, describe_fault
from specbench.log.machine import gpu_numbers
from specbench.log.usage import MethodEnergy
from specbench.machine.energy import IDLE_S, TickSampler, energy_meter
from specbench.measure.base import Plan, outer_clock
from specbench.measure.requests import make_chat, make_request
from specbench.types import Completion, Request

if TYPE_CHECKING:
    from specbench.machine.gpu_sampler import GpuSampler

LEAST_S = 6.0
"""Seconds after which a method begins no further round over the prompts."""
MOST_OF_TICKS = 0.05
"""Largest share of a measured energy that two ticks may be: each of the two readings may be off
by one tick.
"""


def metered(complete: Callable[[], Completion], sampler: GpuSampler | None) -> Completion:
    """A completion with its energy, read outside of the timed region."""
    before = sampler.energy_j() if sampler else None
    completion = complete()
    after = sampler.energy_j() if sampler else None
    if before is None or after is None or after < before:  # less: the driver has restarted
        return completion
    return replace(completion, energy_j=after - before)


def measure_energies(
    plan: Plan, complete: Callable[[str, Request], Completion], device: str
) -> tuple[MethodEnergy, ...]:
    """The energy of each method at each temperature, while it repeats the run's prompts alone.

    Only first turns are completed. The power of the idle machine is measured before.
    """
    pairs = [*product(plan.spec.temperatures, plan.setup.labels)]
    numbers = gpu_numbers(device)  # empty for a CPU: its meters are its packages
    with energy_meter(has_gpu=bool(numbers)) as meter:
        names = tuple(f"GPU {number}" for number in numbers) or tuple(meter.read())
        if not names or not {*names} <= meter.read().keys():
            absent = "; ".join(meter.absent) or "the driver lists no GPU"
            return tuple(MethodEnergy(label, t, absent=absent) for t, label in pairs)
        idle_w = _idle_watts(TickSampler(meter, names))
        return tuple(
            _energy_alone(
                MethodEnergy(label, temperature, idle_w=idle_w, meters=names),
                _first_turns(plan, temperature),
                partial(complete, label),
                TickSampler(meter, names),
            )
            for temperature, label in pairs
        )


def _idle_watts(ticks: TickSampler) -> float:
    began = outer_clock()
    time.sleep(IDLE_S)
    ticks.sample()
    return round(ticks.joules / (outer_clock() - began), 2)


def _first_turns(plan: Plan, temperature: float) -> list[Request]:
    """The first turns of a pass as requests, without prompts that the model cannot read."""
    requests = []
    for sample in plan.samples:
        if (sample.temperature, sample.repeat) == (temperature, 0):
            chat = make_chat(sample.prompt.turns[:1], ())
            prompt_ids = plan.setup.codec.render(chat)
            with suppress(UserError):
                requests.append(make_request(plan.work, prompt_ids, sample.key(0)))
    return requests


def _energy_alone(
    energy: MethodEnergy,
    requests: Sequence[Request],
    complete: Callable[[Request], Completion],
    ticks: TickSampler,
) -> MethodEnergy:
    """`energy` with the measured numbers, or with the reason why there are none."""
    began, num_tokens = outer_clock(), 0
    try:
        with ticks:
            while outer_clock() - began < LEAST_S:
                num_tokens += sum(complete(request).num_tokens for request in requests)
    except Exception as error:  # a method may raise anything; its samples fail, too
        reason = error.message if isinstance(error, SpecbenchError) else describe_fault(error)
        return replace_part(energy, absent=reason)
    ticks.sample()
    absent = ""
    if ticks.still:
        absent = f"the counter stood still: {', '.join(ticks.still)}"
    elif 2 * ticks.tick_j > MOST_OF_TICKS * ticks.joules:
        share = f"{100 * MOST_OF_TICKS:.0f} % of {ticks.joules:.0f} J"
        absent = f"two ticks of {ticks.tick_j:.3g} J are more than {share}"
    return replace_part(
        energy,
        joules_per_token=None if absent else ticks.joules / num_tokens,
        num_tokens=num_tokens,
        duration_s=round(outer_clock() - began, 3),
        tick_j=round(ticks.tick_j, 3),
        absent=absent,
    )
