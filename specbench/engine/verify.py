"""Verify a draft tree: run the target over it, accept a path, and commit the path."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.engine.accept import AcceptedPath, Verdict, accept_path, choose
from specbench.engine.clock import Stopwatch
from specbench.engine.drafter import Drafter
from specbench.engine.kv import KVCache
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, RuleInputs, TreeLayout, padded_path_length


class Verified(NamedTuple):
    """Results of a step: the target's outputs, and the committed path."""

    forward: Forward
    verdict: Verdict
    accepted_path: AcceptedPath | None
    """The path on the device, or None if it is known only on the host."""


def verify(
    target: Target,
    tree: DraftTree,
    drafter: Drafter,
    sampler: Sampler,
    watch: Stopwatch | None = None,
    *,
    is_joined: bool,
) -> Verified:
    """Run the target over a drafter's tree, and commit the path that the drafter's rule accepts.

    With `is_joined`, one recording does both if steps are recorded. Otherwise, `watch` records a
    lap after the target's forward.
    """
    if is_joined and target.has_recorded_steps:
        return _verify_at_once(target, tree, drafter, sampler)
    forward = target.forward(tree)
    if watch:
        watch.lap("verify")
    chosen = accept_path(drafter.rule, tree, forward.logits, sampler, target.execution)
    return Verified(forward, *commit_path(target, tree.layout, chosen))


def _verify_at_once(
    target: Target, tree: DraftTree, drafter: Drafter, sampler: Sampler
) -> Verified:
    """Do the same as `verify` in one recording. If it cannot be recorded, its parts are."""
    inputs = RuleInputs.of(tree)
    forward, (chosen, *accepted) = target.forward_then(
        tree,
        _choose_and_commit,
        *inputs.tensors,
        target=target,
        length=_copied_length(drafter, tree.layout),
        names=inputs.names,
        rule=drafter.rule,
        sampler=sampler,
    )
    if not accepted:
        return Verified(forward, *commit_path(target, tree.layout, chosen))
    verdict = Verdict.read(chosen)
    target.cache.length += len(verdict.path)
    return Verified(forward, verdict, AcceptedPath(*accepted))


def _copied_length(drafter: Drafter, layout: TreeLayout) -> int:
    """Number of nodes to which a path is padded to copy its rows. 0 for chains: nothing is copied.

    Trees of a drafter with equally many nodes get the same length, so they share a recording.
    """
    if drafter.has_fixed_size:
        return 0 if layout.is_chain else layout.padded_path_length
    if drafter.has_chains and layout.is_chain:
        return 0
    depth = max(drafter.tree_depth, layout.max_depth)
    return min(layout.num_nodes, padded_path_length(depth))


def _choose_and_commit(
    logits: Tensor,
    tokens: Tensor,
    depths: Tensor,
    bias: Tensor,
    start: Tensor,
    *tensors: Tensor,
    target: Target,
    length: int,
    **named: Any,
) -> tuple[Tensor, ...]:
    """Run `choose`. Unless `length` is 0, also commit the path, padded to that length.

    This moves the path's rows. So it may run again only after a forward, which writes them anew.
    """
    execution, cache = target.execution, target.cache
    (chosen,) = execution.wrap(choose)(logits, tokens, depths, *tensors, **named)
    if not length:
        return (chosen,)
    gather = execution.wrap(_gather_path)
    path, token_ids, last, *copies = gather(chosen, start, cache=cache, length=length)
    cache.write_rows(start + torch.arange(length, device=start.device), copies)
    return chosen, path, token_ids, last


def commit_path(
    target: Target, layout: TreeLayout, chosen: Tensor
) -> tuple[Verdict, AcceptedPath | None]:
    """Commit the path of the last forward that `select` chose, and copy it to the host.

    With captured graphs, all device work is queued before the host waits, and the path on the
    device is returned too. A chain needs no copies in the cache.
    """
    execution, cache = target.execution, target.cache
    if not execution.is_static or layout.is_chain:
        verdict = Verdict.read(chosen)
        target.commit(verdict.path)
        return verdict, None
    start = torch.full((), cache.length, device=target.device)
    gather = execution.wrap(_gather_path)
    path, token_ids, last, *copies = gather(
        chosen, start, cache=cache, length=layout.padded_path_length
    )
    cache.append_rows(copies)
    verdict = Verdict.read(chosen)
    cache.length += len(verdict.path)
    return verdict, AcceptedPath(path, token_ids, last)


def _gather_path(
    chosen: Tensor, start: Tensor, *, cache: KVCache, length: int
) -> tuple[Tensor, ...]:
    """The chosen path as in `AcceptedPath`, and copies of its rows. The root is row `start` []."""
    accepted = AcceptedPath.from_choice(chosen, length)
    return *accepted, *cache.gather_rows(start + accepted.path)
