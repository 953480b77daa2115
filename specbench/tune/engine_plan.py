"""Plan a profile or a cost curve, and find the methods that can have one."""

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
from specbench.measure.spec import SPREAD, make_spec
from specbench.types import ProfileKind, Sampling

Say = Callable[[str], None]
"""A function that receives a line of text."""
SEEDS = 3
"""The number of answers to each prompt above temperature 0, where answers differ."""


class EnginePlan(NamedTuple):
    """A plan for the engine in this process, with its setup."""

    plan: Plan
    """The prompts to complete."""
    setup: EngineSetup
    """The plan's setup, typed as one of the engine in this process."""
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
    """Make the plan of a profile or a cost curve. Options not given have the paper's values.

    At temperature 0 the plan has one answer per prompt. Above 0 it has `SEEDS` answers per prompt,
    or as many as `values` says (`repeats`).

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several; if empty, a plain run's methods.
        values: further fields of the run's spec by name, such as `tasks` and `temperatures`.
        offline: use no network.

    Raises:
        UserError: an unknown name or wrong value, several temperatures, or a server in place of
            the engine in this process.
    """
    # `SPREAD`: a limited number of prompts is taken from all parts of a task
    spec_fields = {"repeats": SEEDS, "limit_order": SPREAD, **values}
    if methods:
        spec_fields["methods"] = methods
    # `is_baseline_run`: vanilla is a method of the plan too
    spec_fields |= {"model": model, "settings": "paper", "is_baseline_run": True}
    spec = make_spec(**spec_fields)
    if len(spec.temperatures) > 1:
        temperatures = ",".join(f"{temperature:g}" for temperature in spec.temperatures)
        message = f"A profile and a cost curve have one temperature, not {temperatures}."
        raise UserError(message, "Give one of them.")
    if spec.sampling(spec.temperatures[0]).is_greedy:  # all answers to a prompt are the same
        spec = msgspec.structs.replace(spec, repeats=1)
    plan = make_plan(spec, is_offline=offline)
    if not isinstance(plan.setup, EngineSetup):  # the setup of a server
        raise UserError("A server has neither profile nor cost curve.", "Leave --url out.")
    return EnginePlan(plan, plan.setup, is_offline=offline)


def kinds_of(
    setup: EngineSetup, drafters: Mapping[str, Drafter], sampling: Sampling, say: Say | None
) -> dict[str, ProfileKind]:
    """Find the name of each method's kind of profile, such as "pool", by the method's label.

    Methods that can have no profile are left out. A label is a method with its options, as text.

    Args:
        setup: names the methods (`labels`).
        drafters: the methods' drafters, by label.
        sampling: sampling of the answers.
        say: receives a line per method that can have no profile; with None, such a method is
            refused.

    Raises:
        UserError: `say` is None, and a method can have no profile.
        SpecbenchError: a method failed to load.
    """
    kinds: dict[str, ProfileKind] = {}
    for label in setup.labels:
        drafter = drafters[label]
        reason = _reason_for_no_profile(drafter, sampling)  # "" if the drafter can have a profile
        if not reason and drafter.profile is not None:  # `profile`: the name of its kind
            kinds[label] = drafter.profile
            continue
        message = f"{label} has no acceptance profile: {reason}."
        if say is None:
            hint = f"Measure its settings in ordinary runs: specbench run --method '{label}'"
            raise UserError(message, f"Leave it out. {hint}")
        say(message)
    return kinds


def _reason_for_no_profile(drafter: Drafter, sampling: Sampling) -> str:
    """Return why a drafter cannot have an acceptance profile with this sampling; "" if it can.

    `drafter.profile` is the name of its kind of profile, or None if the method names no kind.
    `drafter.rule` decides which draft tokens are accepted; the rule `lossless` keeps the target's
    distribution.

    Raises:
        SpecbenchError: the method failed to load.
    """
    if drafter.profile is None:
        # `needs` are the target's outputs that the drafter reads. If the method failed to load, its
        # drafter is a stand-in, whose `needs` raises the error.
        _ = drafter.needs
        return "its drafts may depend on earlier trees or answers"
    if sampling.is_greedy:
        return ""
    if drafter.rule is not lossless:
        return "above temperature 0, its rule gives different answers from vanilla's"
    if drafter.draws_siblings:
        return "above temperature 0, it draws siblings, and an answer shows only one"
    return ""
