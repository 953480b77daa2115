"""The plan of a profile or a cost curve, and which methods can have one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from specbench.engine.accept import lossless
from specbench.engine.drafter import Drafter
from specbench.errors import UserError
from specbench.measure.base import Plan
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.plan import make_plan
from specbench.measure.spec import make_spec
from specbench.types import ProfileKind, Sampling

Say = Callable[[str], None]
"""Receives a line of text."""
SEEDS = 3
"""Answers to each prompt above temperature 0: an answer is only one of many."""


class EnginePlan(NamedTuple):
    """A plan for the engine in this process, with its setup."""

    plan: Plan
    """What is completed."""
    setup: EngineSetup
    """Its setup, with the type that plans of the engine have."""
    is_offline: bool = False
    """True if no network may be used."""

    @property
    def sampling(self) -> Sampling:
        """The sampling at the only temperature."""
        spec = self.plan.spec
        return spec.sampling(spec.temperatures[0])


def make_engine_plan(
    model: str, methods: str | Sequence[str], values: Mapping[str, Any], *, offline: bool
) -> EnginePlan:
    """The plan of values from Python, with the paper's settings: one pass of greedy answers.

    Raises:
        UserError: an unknown name or wrong value, a server, or several temperatures.
    """
    given = {"repeats": SEEDS, **values}
    if methods:
        given["methods"] = methods
    given |= {"model": model, "settings": "paper", "is_baseline_run": True}
    spec = make_spec(**given)
    if len(spec.temperatures) > 1:
        temperatures = ",".join(f"{temperature:g}" for temperature in spec.temperatures)
        message = f"A profile and a cost curve have one temperature, not {temperatures}."
        raise UserError(message, "Give one of them.")
    if spec.sampling(spec.temperatures[0]).is_greedy:
        spec = msgspec.structs.replace(spec, repeats=1)
    plan = make_plan(spec, is_offline=offline)
    if not isinstance(plan.setup, EngineSetup):
        raise UserError("A server has neither profile nor cost curve.", "Leave --url out.")
    return EnginePlan(plan, plan.setup, offline)


def kinds_of(
    setup: EngineSetup, drafters: Mapping[str, Drafter], sampling: Sampling, say: Say | None
) -> dict[str, ProfileKind]:
    """The kind of profile of each method. `say` gets a line for each method without one.

    Raises:
        UserError: without `say`, a method has no profile.
    """
    kinds: dict[str, ProfileKind] = {}
    for label in setup.labels:
        drafter = drafters[label]
        reason = _reason_for_no_profile(drafter, sampling)
        if not reason and drafter.profile is not None:
            kinds[label] = drafter.profile
            continue
        message = f"{label} has no acceptance profile: {reason}."
        if say is None:
            hint = f"Ordinary runs measure its settings: specbench run --method '{label}'"
            raise UserError(message, f"Leave it out. {hint}")
        say(message)
    return kinds


def _reason_for_no_profile(drafter: Drafter, sampling: Sampling) -> str:
    """Why a drafter has no profile at a temperature; nothing if it has one."""
    if drafter.profile is None:
        _ = drafter.needs  # a broken one says why
        return "its drafts depend on earlier trees or answers, or the method does not say"
    if sampling.is_greedy:
        return ""
    if drafter.rule is not lossless:
        return "above temperature 0 its rule gives other answers than vanilla's"
    if drafter.draws_siblings:
        return "above temperature 0 it draws siblings, and an answer shows only one"
    return ""
