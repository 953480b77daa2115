"""Verify a draft tree: run the target over it, accept a path, and commit the path."""

from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.accept import AcceptedPath, Verdict, accept_path
from specbench.engine.clock import Stopwatch
from specbench.engine.drafter import Drafter
from specbench.engine.kv import KVCache
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree, TreeLayout


class Verified(NamedTuple):
    """Results of a step: the target's outputs, and the committed path."""

    forward: Forward
    verdict: Verdict
    accepted_path: AcceptedPath | None
    """The path on the device; None if it is only known on the host."""


def verify(
    target: Target,
    tree: DraftTree,
    drafter: Drafter,
    sampler: Sampler,
    watch: Stopwatch,
) -> Verified:
    """Run the target over a tree of a drafter, and commit the path that its rule accepts."""
    forward = target.forward(tree)
    watch.lap("verify")
    chosen = accept_path(drafter.rule, tree, forward.logits, sampler, target.execution)
    return Verified(forward, *commit_path(target, tree.layout, chosen))


def commit_path(
    target: Target, layout: TreeLayout, chosen: Tensor
) -> tuple[Verdict, AcceptedPath | None]:
    """Commit the path chosen by `select` from the last forward, and copy it to the host.

    With captured graphs, all device work is queued before the host waits, and the path is
    returned on the device too. A chain needs no copies in the cache.
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
    """The chosen path as `AcceptedPath`, and copies of its rows, which begin at `start` []."""
    accepted = AcceptedPath.from_choice(chosen, length)
    return *accepted, *cache.gather_rows(start + accepted.path)
