"""A catalogue of bugs, each planted in a method that drafts with the target plus noise.

Such drafts are often accepted. Sound variants serve to count false alarms.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import randrange
from typing import Any

from specbench.engine.accept import typical
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from tests.support import faulty as f
from tests.support import faulty_ends as ends
from tests.support import faulty_rules as rules
from tests.support.cheats import Remembers, under
from tests.support.noisy_target import NoisyTarget


@dataclass(frozen=True)
class Variant:
    """A way to build a method. `check` is the check of the contract kit that finds its bug.

    `is_output` is true if the bug shows in the output, where the audit has to find it. With
    `effort` outcomes of the check, 80 % of all audits find the bug.
    """

    name: str
    check: str = ""
    drafter: Callable[[Target], Drafter] = NoisyTarget
    target: Callable[..., Target] = Target
    patch: Callable[[], AbstractContextManager[None]] = nullcontext
    is_output: bool = True
    effort: int = 0


def ruled(name: str, check: str, rule: Any, *, effort: int = 0, **options: Any) -> Variant:
    bound = partial(rule, **options) if options else rule
    return Variant(name, check, _noisy_under(bound), effort=effort)


def patched(name: str, check: str, emit_: Any, **more: Any) -> Variant:
    return Variant(name, check, patch=partial(ends.patched_emit, emit_), **more)


def drawn(name: str, change: Any, **more: Any) -> Variant:
    def drafter(target: Target) -> Drafter:
        return f.Drawn(target, change)

    return Variant(name, "sampled", drafter, **more)


def _noisy(**options: Any) -> Callable[[Target], Drafter]:
    return partial(NoisyTarget, **options)


def _noisy_under(rule: Any, **options: Any) -> Callable[[Target], Drafter]:
    """A maker of drafters that add noise to the target and follow this rule of acceptance."""

    def drafter(target: Target) -> Drafter:
        return under(NoisyTarget(target, **options), rule)

    return drafter


def _remembers(target: Target) -> Drafter:
    return Remembers({})


def _accepts_scratch(target: Target) -> Drafter:
    rule = partial(rules.faulty, has_scratch=True)
    return under(f.HasScratch(target), rule)


def _is_once_in_50() -> bool:
    return randrange(50) == 0


BUGS = (
    Variant("answers remembered", "recall", _remembers, is_output=False),
    ruled("accepts 10 % too often", "rule", rules.faulty, leniency=1.1),
    ruled("accepts 50 % too often", "rule", rules.faulty, leniency=1.5),
    ruled("no residual after a rejection", "rule", rules.faulty, residual="none"),
    ruled("half of q in the residual", "rule", rules.faulty, residual="half", effort=13_200),
    ruled("residual of the first sibling", "rule", rules.faulty, residual="first"),
    ruled("second residual of the first sibling", "rule", rules.faulty, later="first sibling's"),
    ruled("top-p again on the residual", "rule", rules.faulty, later="top-p again"),
    ruled("wrong below three levels", "rule", rules.right_in_small_trees, most=3, of="levels"),
    ruled("wrong in trees of nine nodes", "rule", rules.right_in_small_trees, most=8, of="nodes"),
    ruled("p without top-k", "rule", rules.without_top_k),
    ruled("greedy below a temperature of 0.5", "rule", rules.greedy_if_cold),
    ruled("bonus from the parent's logits", "sampled", rules.faulty, bonus="parent"),
    ruled("bonus is the best token", "sampled", rules.faulty, bonus="greedy"),
    ruled("bonus without temperature", "rule", rules.faulty, bonus="cold"),
    ruled("temperature applied twice", "sampled", rules.heated),
    ruled("greedy prefill", "sampled", rules.greedy_prefill),
    ruled("first guess always accepted", "greedy", rules.first_always),
    ruled("token of another child", "planted", rules.wrong_child),
    ruled("rule reads the parent's logits", "planted", rules.parents_logits),
    Variant("scratch nodes accepted", "sampled", _accepts_scratch, is_output=False),
    ruled("typical acceptance", "rule", typical, threshold=0.09, alpha=0.3),
    Variant("cache keeps a rejected row", "sampled", target=f.KeepsRejected),
    Variant("cache loses an accepted row", "planted", target=f.LosesAccepted),
    Variant("stale keys in one layer", "planted", target=f.StaleLayer),
    Variant("wrong positions", "planted", target=f.WrongPositions),
    Variant("wrong positions far on", "planted", target=f.WrongPositionsFarOn, is_output=False),
    Variant("wrong positions after a rejection", "sampled", target=f.WrongAfterRejection),
    Variant("mask shows a cousin", "planted", target=f.SeesCousin),
    Variant("seed reused in every step", "sampled", f.ReusesSeed),
    Variant("one seed for all answers", "sampled", target=f.OneSeed),
    drawn("q of siblings not conditional", f.unconditional),
    drawn("q sharper than the draws", partial(f.sharper, power=1.5)),
    drawn("q not normalised", f.unnormed),
    drawn("likeliest guesses claimed as draws", f.claims_draws),
    Variant("draft vocabulary off by one", "memory", partial(f.OffByOne, noise=0.1)),
    Variant("stale draft features", "memory", partial(f.Forgets, noise=0.0), is_output=False),
    Variant("state left by a prompt", "repeats", f.LeavesState, is_output=False),
    Variant("tree of an unknown size", "sizes", f.ForgetsSize, is_output=False),
    patched("one token too many after EOS", "ends", ends.after_eos, is_output=False),
    patched("budget exceeded", "ends", ends.beyond_budget),
    patched("token lost before EOS", "ends", ends.lost_before_eos, is_output=False),
    patched("one token beyond the budget of two", "ends", ends.overshoots_by_two, is_output=False),
    patched("accepted token dropped", "planted", ends.without_bonus),
    drawn("q a little sharper than the draws", partial(f.sharper, power=1.1), is_output=False),
    Variant("stale logits in 1 of 10 steps", "planted", target=f.StaleLogits, is_output=False),
)
"""Bugs by the check that finds them."""

SMALL = (
    ruled("temperature 5 % too high in the rule", "rule", rules.heated, by=1.05, effort=316_000),
    ruled("accepts 2 % too often", "rule", rules.faulty, leniency=1.02, effort=330_000),
    ruled("bonus drawn from p^1.1", "rule", rules.faulty, bonus="cool", effort=656_000),
    patched(
        "an answer that ends before EOS, once in 50",
        "ends",
        ends.ends_early(_is_once_in_50),
        effort=80,
    ),
)
"""Bugs that need more than the usual effort. Their tests simulate this effort."""

SOUND = (
    Variant("siblings", drafter=_noisy()),
    Variant("chain", drafter=_noisy(shape=(1, 1, 1, 1, 1))),
    Variant("star", drafter=_noisy(shape=(6,))),
    Variant("no noise", drafter=_noisy(noise=0.0)),
    Variant("hardly related", drafter=_noisy(noise=8.0)),
    Variant("fixed guesses", drafter=_noisy(is_drawn=False)),
    Variant("fixed guesses, much noise", drafter=_noisy(is_drawn=False, noise=3.0)),
    Variant("wide and deep", drafter=_noisy(shape=(4, 3, 2, 2, 1, 1))),
    Variant("own rule", drafter=_noisy_under(rules.faulty)),
    Variant("own rule on a chain", drafter=_noisy_under(rules.faulty, shape=(1, 1, 1))),
)
"""Sound variants, to count false alarms."""
