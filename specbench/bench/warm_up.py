"""Before the first sample: every method decodes a little, and all that is recorded once is.

Knows plans, completers and the lengths that completions will reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from specbench.bench.plan import Plan
from specbench.bench.runner import Completer
from specbench.errors import SpecbenchError
from specbench.types import Request

if TYPE_CHECKING:
    from specbench.engine.target import Target

WARM_UP_TOKENS = 32
_MARGIN = 96
"""Rows before a bucket's end from which a warm-up goes through it: a tree and a few tokens."""


def warm_up(plan: Plan, completers: Mapping[str, Completer], target: Target) -> dict[str, Any]:
    """Let every method decode a little, so that no first sample pays for what is done once.

    Where steps are recorded, through every size of the cache that a sample can reach. Returns for
    each method how its steps are run, and why not as recordings if they are not.
    """
    from specbench.engine.rehearsal import rehearse

    execution = target.execution
    prompts = list(_prompts(plan, target))
    longest = max(map(len, prompts)) + plan.max_new_tokens
    if execution.is_static:
        samplings = [plan.spec.sampling(temperature) for temperature in plan.spec.temperatures]
        rehearse(target, min(longest, target.context), samplings)
    why_no_graphs = plan.setup.mode.why_no_graphs or None
    found: dict[str, Any] = {}
    for label, complete in completers.items():
        known = len(execution.failures)
        for temperature in plan.spec.temperatures:
            for prompt_ids in prompts:
                tokens = min(WARM_UP_TOKENS, plan.max_new_tokens)
                request = Request(prompt_ids, tokens, plan.spec.sampling(temperature))
                try:
                    complete(request)
                except (SpecbenchError, RuntimeError, ValueError):
                    break  # every sample of this method will record the same failure
        reason = next(iter(execution.failures[known:]), target.why_not_fused or why_no_graphs)
        found[label] = {"mode": "eager" if reason else plan.setup.mode.name, "reason": reason}
    execution.close()
    return found


def _prompts(plan: Plan, target: Target) -> Iterator[tuple[int, ...]]:
    """A first prompt, and where steps are recorded one for each size that the cache may have."""
    turn = next(iter(plan.prompts.values()))[0].turns[0]
    render = plan.setup.codec.render
    first = render([{"role": "user", "content": turn}])
    yield first
    if not target.execution.is_static:
        return
    longest = max(
        len(render([{"role": "user", "content": " ".join(prompt.turns)}]))
        + plan.max_new_tokens * len(prompt.turns)
        for prompts in plan.prompts.values()
        for prompt in prompts
    )
    from specbench.engine.graphs import BUCKET

    for end in range(BUCKET, min(longest, target.context) + BUCKET, BUCKET):
        length = min(end, target.context) - _MARGIN
        yield (first * (length // len(first) + 1))[:length]
