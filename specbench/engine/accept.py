"""Acceptance: the target's logits over a tree decide which path is emitted.

At every node, a rule chooses the next token and accepts the child that carries it, if there is one.
The deepest accepted path wins. On a GPU, all of this is tensor code without a loop over nodes. One
copy to the host ends the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.engine.execution import Execution
from specbench.engine.sampler import Sampler
from specbench.engine.tree import DraftTree, RuleInputs, TreeLayout
from specbench.errors import NonFiniteError

BROKEN_TARGET = -(2**63)
"""Mark that replaces a token that was chosen from NaN or infinite logits of the target."""
BROKEN_DRAFT = 1 - 2**63
"""Mark that replaces the token after the root if the draft's scores are NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision of a rule.

    `path` holds the indices of the accepted nodes, from the root on. `token_ids` are the emitted
    tokens: the accepted draft tokens, then the bonus token. `next_ids` has the token that the rule
    chose after each node, including scratch nodes.
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    next_ids: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens: the path without its root."""
        return len(self.path) - 1

    @classmethod
    def read(cls, chosen: Tensor) -> Verdict:
        """Copy the result of `accept_path` to the host. Only here does a step wait for the device.

        Raises:
            NonFiniteError: the target's logits on the path, or the draft's scores, are not finite.
        """
        on_path, tokens, next_ids = chosen.tolist()
        mark = min(next_ids)  # both marks are below every token id
        if mark <= BROKEN_DRAFT:
            source = "draft's scores" if mark == BROKEN_DRAFT else "target's logits"
            hint = "Check the weights and config.json (rms_norm_eps, rope), or use a wider --dtype."
            raise NonFiniteError(f"The {source} are NaN or infinite", hint)
        path = tuple(node for node, is_on_path in enumerate(on_path) if is_on_path)
        accepted = tuple(tokens[node] for node in path[1:])
        bonus = next_ids[path[-1]]
        return cls(path, (*accepted, bonus), tuple(next_ids))


class AcceptedPath(NamedTuple):
    """The accepted path on the device. It is padded if shapes must not change."""

    path: Tensor  # [n] node indices, root first; undefined after `last`
    token_ids: Tensor  # [n] emitted tokens; undefined after `last`
    last: Tensor  # [1] index of the last valid entry of both

    @classmethod
    def single(cls, token_id: int, device: torch.device) -> AcceptedPath:
        """The path of a single node, after which `token_id` was emitted."""
        root = torch.zeros(1, dtype=torch.long, device=device)
        return cls(path=root, token_ids=root + token_id, last=root)

    @classmethod
    def from_verdict(cls, verdict: Verdict, device: torch.device) -> AcceptedPath:
        """The path of a verdict, without padding."""
        path, token_ids = torch.tensor([verdict.path, verdict.token_ids], device=device)
        last = torch.full((1,), verdict.num_accepted, device=device)
        return cls(path, token_ids, last)

    @classmethod
    def from_choice(cls, chosen: Tensor, length: int) -> AcceptedPath:
        """The result of `select`, read on the device and padded to `length` nodes."""
        on_path, tokens, next_ids = chosen
        nodes = torch.arange(chosen.shape[1], device=chosen.device)
        ranks = on_path.cumsum(0)  # [nodes] how many nodes up to this one are on the path
        indices = torch.where(on_path > 0, ranks - 1, length)  # nodes off the path go after it
        path = nodes.new_zeros(length + 1).scatter_(0, indices, nodes)
        last = ranks[-1:] - 1
        bonus = next_ids[path[last]]
        token_ids = tokens[path[1:]].scatter_(0, last, bonus)
        return cls(path[:-1], token_ids, last)

    def padded(self, length: int) -> AcceptedPath:
        """The same path, padded to `length` nodes."""
        num_more = length - self.path.shape[0]
        path = pad(self.path, (0, num_more))
        token_ids = pad(self.token_ids, (0, num_more))
        return AcceptedPath(path, token_ids, self.last)


class Rule(Protocol):
    """An acceptance rule. The default is `lossless`, but a method may have its own rule.

    A rule returns the result of `select`. It must not wait for the device.
    """

    def __call__(self, tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor: ...


def accept_path(
    rule: Rule, tree: DraftTree, logits: Tensor, sampler: Sampler, execution: Execution
) -> Tensor:
    """Accept a path of a tree by a rule, given the target's `logits` [nodes, vocab].

    The result is that of `select`. A token chosen from logits that are not finite becomes a mark,
    for which `Verdict.read` raises an error.
    """
    if not execution.is_static:
        return _mark_non_finite(rule(tree, logits, sampler), tree, logits, sampler)
    inputs = RuleInputs.of(tree)
    tensors = (logits, tree.tokens, tree.layout.depths, *inputs.tensors)
    (chosen,) = execution.wrap(choose)(*tensors, names=inputs.names, rule=rule, sampler=sampler)
    return chosen


def choose(
    logits: Tensor, tokens: Tensor, depths: Tensor, parents: Tensor, ancestors: Tensor,
    num_verify: Tensor, *present: Tensor, names: tuple[str, ...], rule: Rule, sampler: Sampler,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Do the same as `accept_path`, with the tensors of a tree as arguments.

    `present` are optional tensors of the tree. `names` has their names: q, siblings, scores.
    """
    optional = dict(zip(names, present, strict=True))
    layout = TreeLayout(
        parents, depths, ancestors, max_depth=parents.shape[0] - 1,
        known_siblings=optional.get("siblings"),
    )  # fmt: skip
    q, scores = optional.get("q"), optional.get("scores")
    tree = DraftTree(tokens, layout, num_verify, q, scores=scores)
    return (_mark_non_finite(rule(tree, logits, sampler), tree, logits, sampler),)


def _mark_non_finite(chosen: Tensor, tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """Mark, in place, the tokens of `chosen` [3, nodes] that come from logits that are not finite.

    Greedy decoding needs only the chosen token's logit: NaN and infinity win every argmax.
    """
    on_path, _, next_ids = chosen
    if sampler.sampling.is_greedy:
        in_vocabulary = next_ids.clamp(0, logits.shape[1] - 1)  # a plug-in may choose any id
        deciding = logits.gather(1, in_vocabulary[:, None])[:, 0]
    else:
        deciding = logits.amax(-1)
    is_finite = deciding < torch.inf  # [nodes]; False for NaN, too
    if is_finite.device.type == "cpu" and tree.scores is None and is_finite.all():
        return chosen
    next_ids.masked_fill_(on_path.bool() & ~is_finite, BROKEN_TARGET)
    if tree.scores is not None:
        is_draft_finite = (tree.scores < torch.inf).all()
        next_ids[:1].masked_fill_(~is_draft_finite, BROKEN_DRAFT)
    return chosen


def lossless(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """The rule whose output has the target's own distribution at every temperature.

    It accepts child x with probability min(1, p(x) / q(x)). If x is rejected, p becomes
    norm(max(p - q, 0)) for the next sibling (Leviathan et al. 2023, algorithm 1; over siblings:
    SpecInfer, Miao et al. 2024). For deterministic draft tokens, q is a point mass. The rule then
    draws the next token from p, and accepts the child that carries it. Greedy decoding takes the
    best token instead of a drawn token.
    """
    if tree.q is None or sampler.sampling.is_greedy:
        next_ids = sampler.pick(logits)
        accepted = tree.tokens == next_ids[tree.layout.parents]
    else:
        accepted, next_ids = _reject(tree, tree.q, sampler.probs(logits), sampler)
    return select(tree, accepted, next_ids)


def _reject(tree: DraftTree, q: Tensor, p: Tensor, sampler: Sampler) -> tuple[Tensor, Tensor]:
    """Rejection sampling at all nodes at once, in one round for each rank among siblings."""
    n = tree.num_nodes
    may_accept = torch.arange(n, device=p.device) < tree.num_verify
    accepted = torch.zeros(n, dtype=torch.bool, device=p.device)
    is_open = torch.ones(n, dtype=torch.bool, device=p.device)  # no child is accepted yet
    chance = sampler.uniform(n)
    for child in tree.layout.siblings:  # [nodes] a child of each node, or 0
        token = tree.tokens[child][:, None]
        q_child = q[child]  # [nodes, vocab]
        q_token = q_child.gather(1, token)[:, 0]
        p_token = p.gather(1, token)[:, 0]
        is_tried = is_open & (child > 0) & may_accept[child]
        is_kept = is_tried & (chance[child] * q_token < p_token)  # chance < p / q
        accepted = accepted.scatter(0, child, accepted[child] | is_kept)
        is_open = is_open & ~is_kept
        residual = (p - q_child).clamp_(min=0)
        mass = residual.sum(-1, keepdim=True)
        # If the residual has no mass, p equals q, and only rounding can have caused the rejection.
        is_rejected = (is_tried & ~is_kept)[:, None] & (mass > 0)
        p = torch.where(is_rejected, residual / mass, p)
    return accepted, sampler.draw(p)


def typical(
    tree: DraftTree, logits: Tensor, sampler: Sampler, *, threshold: float, alpha: float
) -> Tensor:
    """Medusa's typical acceptance, which accepts tokens that are likely enough. It is not lossless.

    A node is accepted if its probability exceeds min(threshold, alpha * exp(-entropy)). The most
    likely of the deepest paths wins, and the target's best token follows it. Greedy decoding is the
    same as in `lossless`. Source: Cai et al. 2024, "Medusa", section 2.3.1; behaviour checked
    against Spec-Bench's model/medusa.
    """
    next_ids = sampler.best_ids(logits)
    if sampler.sampling.is_greedy:
        return select(tree, tree.tokens == next_ids[tree.layout.parents], next_ids)
    p = sampler.probs(logits)
    entropy = torch.special.entr(p).sum(-1)  # [nodes]
    sufficient = torch.exp(-entropy).mul_(alpha).clamp_(max=threshold)
    parents = tree.layout.parents
    likelihood = p[parents, tree.tokens]
    return select(tree, likelihood > sufficient[parents], next_ids, likelihood)


def select(
    tree: DraftTree, accepted: Tensor, next_ids: Tensor, likelihood: Tensor | None = None
) -> Tensor:
    """Select the deepest path of accepted nodes.

    The result [3, nodes] has three rows: 1 for nodes on the path and 0 for others, the tokens, and
    `next_ids`. `accepted` [nodes] is True if a node may follow its parent. `next_ids` [nodes] is
    the token after each node. If several paths are equally deep, the first wins. If `likelihood`
    [nodes] in (0, 1] is given, the path with the largest product of its values wins instead.
    """
    if isinstance(tree.num_verify, int) and accepted.device.type == "cpu" and likelihood is None:
        return _select_on_host(tree, tree.num_verify, accepted.tolist(), next_ids)
    ancestors = tree.layout.ancestors
    nodes = torch.arange(tree.num_nodes, device=accepted.device)
    is_open = accepted & (nodes < tree.num_verify)
    is_open[:1] = True  # a slice is filled on the device, an element is copied from the host
    is_path = ~(ancestors & ~is_open).any(-1)  # from the root to the node
    depths = torch.where(is_path, tree.layout.depths, -1)
    if likelihood is None:
        best = depths.argmax()
    else:
        log_likelihood = torch.where(is_open, likelihood, 1.0).log_()
        log_likelihood[:1] = 0.0
        path_sums = ancestors.to(log_likelihood.dtype) @ log_likelihood  # [nodes]
        best = torch.where(depths == depths.max(), path_sums, -torch.inf).argmax()
    on_path = ancestors.index_select(0, best.view(1))[0]
    return torch.stack([on_path.long(), tree.tokens, next_ids])


def _select_on_host(
    tree: DraftTree, num_verify: int, accepted: list[bool], next_ids: Tensor
) -> Tensor:
    """Do the same as `select` with few tensor operations.

    Each one starts slowly after a pass over the weights.
    """
    if tree.num_nodes == 1:
        return torch.stack([torch.ones_like(next_ids), tree.tokens, next_ids])
    parents = tree.layout.parents.tolist()
    depths = tree.layout.depths.tolist()
    num_below_root = len(parents) - 1
    is_path = [True] + [False] * num_below_root  # from the root to the node
    deepest = 0
    for node in range(1, min(num_verify, len(parents))):
        is_path[node] = accepted[node] and is_path[parents[node]]
        if is_path[node] and depths[node] > depths[deepest]:
            deepest = node
    on_path = [1] + [0] * num_below_root
    node = deepest
    while node:
        on_path[node] = 1
        node = parents[node]
    return torch.stack([torch.tensor(on_path), tree.tokens, next_ids])
