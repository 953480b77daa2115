"""The loop that every method runs in, and the one place where tokens are counted and cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from specbench.engine.accept import Verdict, judge
from specbench.engine.clock import Clock, DeviceClock, Stopwatch
from specbench.engine.drafter import Drafter, Outcome, State
from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.types import Completion, Request, Step, StopReason, TracedStep

_Traced: TypeAlias = tuple[Tensor, Tensor, tuple[int, ...]]
"""Parents and log-probabilities of a tree's nodes, and the accepted path."""


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    request: Request,
    clock: Clock | None = None,
    stopwatch: Stopwatch | None = None,
    *,
    is_traced: bool = False,
) -> Completion:
    """Complete one request; a stopwatch sees where the time of its steps goes.

    Traced, the trees of drafters that know how probable they hold their guesses are kept.

    Raises:
        UserError: the budget is no positive number, or the prompt fills the target's context.
    """
    limit = token_limit(target, request)
    clock, watch = clock or DeviceClock(target.device), stopwatch or Stopwatch()
    execution, sampler = target.execution, target.sampler(request.sampling, request.seed)
    state = State(request, sampler, limit)
    steps: list[Step] = []
    traced: list[_Traced] = []
    with target.watched(drafter.needs):
        began = clock.now()
        prefill = target.prefill(request.prompt_ids, room=limit)
        # The prefill is a step too, over the prompt's last token as its tree.
        chosen = judge(drafter.rule, state.chain(), prefill.logits, sampler, execution)
        is_done = emit(state, Verdict.read(chosen).token_ids)[1]
        prefilled = clock.now()
        watch.start()
        if not is_done:
            drafter.start(state, prefill)
        while not is_done:
            proposed = drafter.propose(state)
            tree = proposed.padded(execution.num_nodes(proposed.num_nodes))
            watch.lap("draft")  # and what it made of the last step
            forward = target.forward(tree)
            watch.lap("verify")
            chosen = judge(drafter.rule, tree, forward.logits, sampler, execution)
            verdict, followed = target.settle(tree.layout, chosen)
            watch.lap("commit")
            count, is_done = emit(state, verdict.token_ids)
            steps.append(Step(proposed.num_nodes, count))
            if is_traced and proposed.log_probs is not None:
                parents, log_probs = proposed.layout.parents.clone(), proposed.log_probs.clone()
                traced.append((parents, log_probs, verdict.path))
            watch.lap("host")
            if not is_done:
                drafter.observe(state, Outcome(tree, forward, verdict, followed))
        ended = clock.now()
    token_ids = tuple(state.token_ids[len(request.prompt_ids) :])
    reason = stop_reason(target, request, token_ids)
    return Completion(
        token_ids, reason, tuple(steps), prefilled - began, ended - prefilled, watch.read(),
        trace=tuple(map(_on_host, traced)),
    )  # fmt: skip


def _on_host(traced: _Traced) -> TracedStep:
    parents, log_probs, path = traced
    return TracedStep(tuple(parents.tolist()), (0.0, *log_probs[1:].tolist()), path)


def token_limit(target: Target, request: Request) -> int:
    """How many tokens the request may produce: its budget, or what the context has left."""
    if request.max_new_tokens < 1:
        raise UserError(
            f"A budget of {request.max_new_tokens} new tokens leaves nothing to measure.",
            "Give --max-new-tokens a positive number.",
        )
    left = target.context - len(request.prompt_ids)
    if not request.prompt_ids or left < 1:
        raise UserError(
            f"A prompt of {len(request.prompt_ids)} tokens cannot be completed by a model with a "
            f"context of {target.context}.",
            "Shorten the prompt, or use a model with a longer context.",
        )
    return min(request.max_new_tokens, left)


def emit(state: State, token_ids: Iterable[int]) -> tuple[int, bool]:
    """Append what a step produced, cut behind the first EOS and at the limit.

    Returns how many tokens count, and whether the completion is over.
    """
    count = 0
    for token in token_ids:
        state.token_ids.append(token)
        count += 1
        if token in state.request.eos_ids or state.room == 0:
            return count, True
    return count, False


def stop_reason(target: Target, request: Request, token_ids: tuple[int, ...]) -> StopReason:
    """Why a finished completion ended; EOS as the last allowed token counts as EOS."""
    if token_ids[-1] in request.eos_ids:
        return "eos"
    return "budget" if len(token_ids) == request.max_new_tokens else "length"
