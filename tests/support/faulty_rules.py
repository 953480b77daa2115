"""Faulty acceptance rules, for the catalogue of bugs."""

from dataclasses import replace

import torch
from torch import Tensor

from specbench.engine.accept import lossless, select
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree
from specbench.types import Sampling


def faulty(
    tree: DraftTree,
    logits: Tensor,
    sampler: Sampler,
    *,
    leniency: float = 1.0,
    residual: str = "own",
    bonus: str = "own",
    has_scratch: bool = False,
    later: str = "own",
) -> Tensor:
    """The lossless rule with a fault, for drawn draft tokens. Without arguments, it is sound.

    Arrays are [nodes], and distributions [nodes, vocab], unless a comment says otherwise.
    """
    q = tree.q
    if q is None or sampler.sampling.is_greedy:
        return lossless(tree, logits, sampler)
    num_nodes = tree.num_nodes
    layout = tree.layout
    if has_scratch:
        tree = replace(tree, num_verify=num_nodes)
    target = sampler.probs(logits)
    p = target  # what is left of it after the rejections so far
    chance = sampler.uniform(num_nodes)
    is_accepted = torch.zeros(num_nodes, dtype=torch.bool)
    is_open = torch.ones(num_nodes, dtype=torch.bool)  # no child is accepted yet
    is_leaf = torch.ones(num_nodes, dtype=torch.bool)
    for number, child in enumerate(layout.siblings):  # the first, second, ... child of each node
        token = tree.tokens[child][:, None]  # [nodes, 1]
        is_tried = is_open & (child > 0) & (child < tree.num_verify)
        is_leaf &= child == 0
        p_of_token = p.gather(1, token)[:, 0]
        q_of_token = q[child].gather(1, token)[:, 0]
        # accepted with probability min(1, leniency * p / q)
        is_kept = is_tried & (chance[child] * q_of_token < leniency * p_of_token)
        is_accepted = is_accepted.scatter(0, child, is_accepted[child] | is_kept)
        is_open = is_open & ~is_kept
        q_of_first_sibling = q[layout.siblings[0]]
        subtracted = _subtracted(residual, q[child], q_of_first_sibling)
        if later == "first sibling's" and number:  # from the second rejection on
            subtracted = q_of_first_sibling
        rest = (p - subtracted).clamp(min=0)
        mass = rest.sum(-1, keepdim=True)
        is_rejected = (is_tried & ~is_kept)[:, None] & (mass > 0)
        rest = rest / mass.clamp(min=1e-9)
        if later == "top-p again":
            log_rest = rest.clamp(min=1e-30).log()
            rest = sampler.probs(log_rest * sampler.sampling.temperature)
        p = torch.where(is_rejected, rest, p)
    drawn = sampler.draw(p)
    # All are drawn, so that every fault uses equally many random numbers.
    bonuses = {
        "own": drawn,
        "parent": sampler.draw(target[layout.parents]),
        "greedy": target.argmax(-1),
        "cold": sampler.draw(logits.softmax(-1)),
        "cool": sampler.draw(target**1.1),
    }
    return select(tree, is_accepted, torch.where(is_leaf, bonuses[bonus], drawn))


def _subtracted(residual: str, q: Tensor, q_of_first_sibling: Tensor) -> Tensor:
    """The part of p that a rejection takes away."""
    if residual == "half":
        return q / 2
    if residual == "first":
        return q_of_first_sibling
    return torch.zeros_like(q) if residual == "none" else q


def right_in_small_trees(
    tree: DraftTree, logits: Tensor, sampler: Sampler, *, most: int, of: str
) -> Tensor:
    """The bonus is the best token in trees with more than `most` nodes, or deeper than `most`."""
    size = tree.num_nodes if of == "nodes" else tree.layout.max_depth
    on_path, tokens, next_ids = lossless(tree, logits, sampler)
    if size > most and not sampler.sampling.is_greedy:
        next_ids = logits.argmax(-1)
    return torch.stack([on_path, tokens, next_ids])


def without_top_k(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """Draws from all tokens."""
    seed = int(sampler.uniform(1) * 2**31)
    sampling = replace(sampler.sampling, top_k=0)
    return lossless(tree, logits, Sampler(sampling, logits.device, seed=seed))


def greedy_if_cold(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """Greedy below a temperature of 0.5."""
    if 0 < sampler.sampling.temperature < 0.5:
        greedy = Sampler(Sampling(), logits.device, seed=0)
        return lossless(replace(tree, q=None), logits, greedy)
    return lossless(tree, logits, sampler)


def heated(tree: DraftTree, logits: Tensor, sampler: Sampler, *, by: float = 0) -> Tensor:
    """A temperature that is too high by this factor; without one, it is applied twice."""
    factor = by or sampler.sampling.temperature
    return lossless(tree, logits / factor, sampler)


def greedy_prefill(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    if tree.num_nodes == 1:
        is_accepted = torch.ones(1, dtype=torch.bool)
        return select(tree, is_accepted, logits.argmax(-1))
    return lossless(tree, logits, sampler)


def first_always(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    is_accepted = torch.arange(tree.num_nodes) == 1
    return select(tree, is_accepted, sampler.pick(logits))


def wrong_child(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """Emits the token of the node after the accepted one."""
    on_path, tokens, next_ids = lossless(tree, logits, sampler)
    return torch.stack([on_path, tokens.roll(-1), next_ids])


def parents_logits(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    return lossless(tree, logits[tree.layout.parents], sampler)
