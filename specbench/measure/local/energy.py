"""Measure the energy of a single completion, and of a method that repeats prompts alone.

A counter of energy advances in ticks. In a run, methods take turns at each prompt, so that a tick
may have the energy of two methods. A method that runs alone is measured over many ticks.
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
from specbench.measure.requests import make_request, user
from specbench.types import Completion, Request

if TYPE_CHECKING:
    from specbench.machine.gpu_sampler import GpuSampler

LEAST_S = 6.0
"""After these seconds, a method begins no further round through the prompts."""
MOST_OF_TICKS = 0.05
"""Two ticks may be at most this share of a measured energy, since each of its two readings may be
off by a tick.
"""


def metered(complete: Callable[[], Completion], sampler: GpuSampler | None) -> Completion:
    """Complete a request, and add its energy in joules. The counter is read outside of the timed
    region.

    `complete` completes the request. The completion has no energy if there is no sampler, or if the
    counter cannot be read.
    """
    before_j = sampler.energy_j() if sampler else None
    completion = complete()
    after_j = sampler.energy_j() if sampler else None
    if before_j is None or after_j is None or after_j < before_j:  # less: the driver has restarted
        return completion
    return replace(completion, energy_j=after_j - before_j)


def measure_energies(
    plan: Plan, complete: Callable[[str, Request], Completion], device: str
) -> tuple[MethodEnergy, ...]:
    """The energy of each method at each temperature, while it repeats the run's prompts alone.

    `complete` completes a request with the method of a label; `device` is the name of the run's
    device, such as "cpu" or "cuda:0". The power of the idle machine is measured first. If the
    machine has no counters that can be read, every result has the reason instead of an energy.
    """
    pairs = [*product(plan.spec.temperatures, plan.setup.labels)]  # (temperature, label)
    numbers = gpu_numbers(device)  # empty for a CPU, whose packages have counters
    with energy_meter(has_gpu=bool(numbers)) as meter:
        # The names of the device's counters. `meter.read` returns the joules by name.
        counter_names = tuple(f"GPU {number}" for number in numbers) or tuple(meter.read())
        if not counter_names or not {*counter_names} <= meter.read().keys():
            reason = "; ".join(meter.absent) or "the driver lists no GPU"
            return tuple(
                MethodEnergy(label, temperature, absent=reason) for temperature, label in pairs
            )
        idle_w = _idle_watts(TickSampler(meter, counter_names))
        return tuple(
            _energy_alone(
                MethodEnergy(label, temperature, idle_w=idle_w, meters=counter_names),
                _first_turns(plan, temperature),
                partial(complete, label),
                TickSampler(meter, counter_names),
            )
            for temperature, label in pairs
        )


def _idle_watts(sampler: TickSampler) -> float:
    """The power of the idle machine in watts, measured over IDLE_S seconds."""
    began_s = outer_clock()
    time.sleep(IDLE_S)
    sampler.sample()
    return round(sampler.joules / (outer_clock() - began_s), 2)


def _first_turns(plan: Plan, temperature: float) -> list[Request]:
    """The requests for the first turn of each prompt at a temperature, as in the first pass.

    Prompts that the model cannot read are left out.
    """
    requests = []
    for sample in plan.samples:
        if sample.temperature == temperature and sample.repeat == 0:  # the first pass
            prompt_ids = plan.setup.codec.render([user(sample.prompt.turns[0])])
            with suppress(UserError):  # raised only for a token without a row in the embedding
                requests.append(make_request(plan.work, prompt_ids, sample.key(turn=0)))
    return requests


def _energy_alone(
    energy: MethodEnergy,
    requests: Sequence[Request],
    complete: Callable[[Request], Completion],
    sampler: TickSampler,
) -> MethodEnergy:
    """`energy` with the joules per token while a method completes the requests again and again.

    `energy` names the method and the temperature. `complete` completes a request with the method.
    `sampler` reads the counters: it has the `joules` in total, the joules per tick (`tick_j`), and
    the names of counters that did not advance or could not be read (`still`). If the energy is
    unknown or too coarse, the result has the reason (`absent`) instead of joules.
    """
    began_s = outer_clock()
    num_tokens = 0
    try:
        with sampler:  # samples until the block ends
            while outer_clock() - began_s < LEAST_S:
                num_tokens += sum(complete(request).num_tokens for request in requests)
    except Exception as error:  # a method may raise anything; its samples fail, too
        reason = error.message if isinstance(error, SpecbenchError) else describe_fault(error)
        return replace_part(energy, absent=reason)
    sampler.sample()  # the last reading
    reason = ""
    if sampler.still:
        reason = f"the counter stood still or was lost: {', '.join(sampler.still)}"
    elif 2 * sampler.tick_j > MOST_OF_TICKS * sampler.joules:  # the readings are too coarse
        limit_text = f"{100 * MOST_OF_TICKS:.0f} % of {sampler.joules:.0f} J"
        reason = f"two ticks of {sampler.tick_j:.3g} J are more than {limit_text}"
    return replace_part(
        energy,
        joules_per_token=None if reason else sampler.joules / num_tokens,
        num_tokens=num_tokens,
        duration_s=round(outer_clock() - began_s, 3),
        tick_j=round(sampler.tick_j, 3),
        absent=reason,
    )
