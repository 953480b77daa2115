"""From a spec to everything a run needs: names resolved and files checked, nothing loaded.

All of the user's mistakes surface here, before a run folder exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from specbench.data.prompts import PromptSet, load_prompt_sets, plan_tasks
from specbench.errors import UserError
from specbench.measure.backends import make_setup
from specbench.measure.base import ChecksMemory, Plan, Setup
from specbench.measure.methods import BASELINE, parse_methods
from specbench.measure.passes import MANY, check_goal
from specbench.measure.preflight import check_names
from specbench.measure.spec import RunSpec
from specbench.models.cards import find_model
from specbench.registry import expand_groups

PASSES = 3
"""Passes over the prompts for tiny and stand-ins, so that intervals cover the machine too."""
MOST_PASSES = 20
"""Passes of a run that ends when its intervals are narrow enough (--until-ci)."""
OUR_BUDGET, DEFAULT_BUDGET = 128, 512
"""Default new tokens of an answer: of tiny and stand-ins, and of real models, as in papers."""


class SetupMaker(Protocol):
    """Makes the setup of a spec: `backends.make_setup`, or that of a cluster."""

    def __call__(self, spec: RunSpec, *, is_offline: bool) -> Setup: ...


@contextmanager
def setup_maker(address: str) -> Iterator[SetupMaker | None]:
    """The maker of setups in the Ray cluster at an address, until the block ends; None without one.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """
    if not address:
        yield None
        return
    from specbench.measure.cluster import connected, make_cluster_setup

    with connected(address) as ray:
        yield partial(make_cluster_setup, ray)


def make_plan(
    spec: RunSpec, *, is_offline: bool = False, setup_maker: SetupMaker | None = None
) -> Plan:
    """Resolve and check everything that `spec` names, the cheap things first.

    `setup_maker` is for setups that are elsewhere; by default the spec's backend is set up here.

    Raises:
        UserError: an unknown name, a wrong value, or a missing or broken file.
    """
    make = setup_maker or make_setup
    is_here = make is make_setup
    if is_here:
        check_names(spec)
    spec = with_defaults(spec)
    tasks = plan_tasks(spec.tasks, spec.prompts)
    # Before torch is imported, with as many prompts and methods as there may be.
    most = min(spec.limit or MANY, spec.sample or MANY)
    check_goal(spec, len({*spec.methods, BASELINE}) if spec.methods else 2, [most] * len(tasks))
    if is_here and not spec.backend:  # rules between options, before anything is downloaded
        parse_methods(spec.methods)
    sets = load_prompt_sets(tasks, spec.prompts, limit=spec.limit, offline=is_offline)
    setup = make(spec, is_offline=is_offline)
    if spec.sample is not None:
        sets = tuple(one.drawn(spec.sample, spec.seed) for one in sets)
    _check_loads(spec, sets)
    check_goal(spec, len(setup.labels), [len(one.prompts) for one in sets])
    budget = new_tokens(spec)
    _check_lengths(setup, sets, spec, reserved=budget if spec.backend == "server" else 1)
    if isinstance(setup, ChecksMemory):
        setup.check_memory(_longest(setup, sets, budget))
    return Plan(spec, setup, sets, budget)


def with_defaults(spec: RunSpec) -> RunSpec:
    """The spec with its source of prompts, its methods one by one, and its number of passes.

    A serving engine runs all of its own methods if none is named.

    Raises:
        UserError: an unknown model or method.
    """
    is_every_one = spec.serving_engine and spec.methods == ("all",)
    # What only exercises specbench takes the prompts of specbench.
    usual = "bundled" if _is_ours(spec) else "paper"
    return replace(
        spec,
        prompts=usual if spec.prompts == "auto" else spec.prompts,
        methods=() if is_every_one else expand_groups(spec.methods),
        repeats=spec.repeats or _passes(spec),
    )


def _passes(spec: RunSpec) -> int:
    """Two passes where time allows, since nothing is claimed from one."""
    if spec.until_ci:
        return MOST_PASSES
    if spec.backend:
        return 1
    if _is_ours(spec):
        return PASSES
    is_short = bool(spec.limit) or spec.prompts == "bundled"  # a pass of a paper's takes hours
    return 2 if is_short else 1


def new_tokens(spec: RunSpec) -> int:
    """New tokens of an answer at most: the given number, or the default for the model."""
    return spec.max_new_tokens or (OUR_BUDGET if _is_ours(spec) else DEFAULT_BUDGET)


def _is_ours(spec: RunSpec) -> bool:
    """True for the embedded model and stand-ins."""
    return spec.weights == "stand-in" or find_model(spec.model).is_embedded


def _length(setup: Setup, text: str) -> int:
    """Tokens of the prompt for a user's first message."""
    return len(setup.codec.render([{"role": "user", "content": text}]))


def _longest(setup: Setup, sets: Sequence[PromptSet], budget: int) -> int:
    """Tokens that the longest chat may grow to, as far as the model's context allows."""
    longest = max(
        sum(_length(setup, text) + budget for text in prompt.turns)
        for prompt_set in sets
        for prompt in prompt_set.prompts
    )
    return longest if setup.context is None else min(longest, setup.context)


def _check_loads(spec: RunSpec, sets: Sequence[PromptSet]) -> None:
    """Refuse requests at once that a task has too few prompts for."""
    most = max(spec.concurrency, default=0)
    for prompt_set in sets:
        if most > (number := len(prompt_set.prompts)):
            raise UserError(
                f"--concurrency {most} needs {most} prompts a task, and {prompt_set.task.name} has "
                f"{number}.",
                "Use more prompts (--limit, --prompts paper), or a lower --concurrency.",
            )


def _check_lengths(
    setup: Setup, sets: Sequence[PromptSet], spec: RunSpec, *, reserved: int
) -> None:
    """Refuse a prompt whose first turn leaves no room for `reserved` tokens in the context.

    A server refuses a request that could outgrow its context, so that its whole budget counts.
    """
    context = setup.context
    if context is None:
        return
    more = " Servers that --engine starts have at most 4096: start one, and give its --url."
    more = more if spec.serving_engine else ""
    for prompt_set in sets:
        for prompt in prompt_set.prompts:
            length = _length(setup, prompt.turns[0])
            if length >= context:
                raise UserError(
                    f"Prompt {prompt.sample_id} has {length} tokens, which fills the context of "
                    f"{spec.model} ({context} tokens).",
                    f"Leave it out (--limit, --dataset), or use a model with more context.{more}",
                )
            if length + reserved > context:
                raise UserError(
                    f"Prompt {prompt.sample_id} has {length} tokens, and {reserved} new ones do "
                    f"not fit into the {context} tokens of the server's context.",
                    f"Give --max-new-tokens {context - length}, leave the prompt out, or start the "
                    f"server with a longer context.{more}",
                )
