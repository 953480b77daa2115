"""Before the first sample: every method decodes a little, and all that is recorded once is.

Knows plans, completers and the lengths that completions will reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
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

    execution, samplings = target.execution, list(map(plan.spec.sampling, plan.spec.temperatures))
    prompts = list(_prompts(plan, target))
    if execution.is_static:
        # A cache that grows drops all recordings, so every one takes its full size first.
        longest = min(max(map(len, prompts)) + plan.max_new_tokens, target.context)
        length = longest - WARM_UP_TOKENS
        for complete in completers.values():
            _try(complete, plan, (prompts[-1] * (length // len(prompts[-1]) + 1))[:length])
        rehearse(target, longest, samplings)
    why_no_graphs = plan.setup.mode.why_no_graphs or None
    found: dict[str, Any] = {}
    for label, complete in completers.items():
        execution.failures.clear()
        for prompt_ids in prompts:
            _try(complete, plan, prompt_ids)
        reason = next(iter(sorted(execution.failures)), target.why_not_fused or why_no_graphs)
        found[label] = {"mode": "eager" if reason else plan.setup.mode.name, "reason": reason}
    execution.close()
    return found


def _try(complete: Completer, plan: Plan, prompt_ids: tuple[int, ...]) -> None:
    """Decode a little at every temperature; whatever fails will fail in every sample too."""
    tokens = min(WARM_UP_TOKENS, plan.max_new_tokens)
    for temperature in plan.spec.temperatures:
        request = Request(prompt_ids, tokens, plan.spec.sampling(temperature))
        with suppress(SpecbenchError, RuntimeError, ValueError):
            complete(request)


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
