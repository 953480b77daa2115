"""Acceptance: the target's logits over a tree decide which path is emitted.

Every rule answers the same question at every node: which token follows here, and which child, if
any, is accepted as it? The deepest accepted path wins. All of it is tensor code without a loop
over nodes; one copy to the host ends the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specbench.engine.execution import Execution
from specbench.engine.tree import DraftTree, TreeLayout, padded_size
from specbench.types import Sampling


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided.

    `path` is the accepted root path, root first, as node indices. `token_ids` are what the step
    emits: the accepted draft tokens, then the bonus token. `next_ids` is the token that the rule
    chose behind every node, scratch nodes included.
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
        """What `select` chose, copied to the host: the one time that a step waits."""
        on_path, tokens, next_ids = chosen.tolist()
        path = tuple(i for i, on in enumerate(on_path) if on)
        drafted = tuple(tokens[i] for i in path[1:])
        return cls(path, (*drafted, next_ids[path[-1]]), tuple(next_ids))


class Accepted(NamedTuple):
    """The accepted path on the device, padded where shapes have to stay the same."""

    path: Tensor  # [n] node indices, root first; behind the last one they mean nothing
    token_ids: Tensor  # [n] what the step emits, as far as the path goes
    last: Tensor  # [1] where both end

    @classmethod
    def only(cls, token_id: int, device: torch.device) -> Accepted:
        """A path of one row, behind which that token was emitted."""
        first = torch.zeros(1, dtype=torch.long, device=device)
        return cls(first, first + token_id, first)

    @classmethod
    def of(cls, verdict: Verdict, device: torch.device) -> Accepted:
        """What a verdict says, without padding."""
        both = torch.tensor([verdict.path, verdict.token_ids], device=device)
        return cls(both[0], both[1], torch.full((1,), verdict.num_accepted, device=device))

    @classmethod
    def follow(cls, chosen: Tensor, room: int) -> Accepted:
        """What `select` chose, without waiting, padded to `room` nodes, which the path fits in."""
        on_path, tokens, next_ids = chosen
        nodes = torch.arange(chosen.shape[1], device=chosen.device)
        ranks = on_path.cumsum(0)
        places = torch.where(on_path > 0, ranks - 1, room)  # all other nodes behind the room
        path = nodes.new_zeros(room + 1).scatter_(0, places, nodes)
        last = ranks[-1:] - 1
        token_ids = tokens[path[1:]].scatter_(0, last, next_ids[path[last]])
        return cls(path[:-1], token_ids, last)


class Sampler:
    """Turns logits into distributions and tokens, by transformers' own logits processors."""

    def __init__(self, sampling: Sampling, device: torch.device, seed: int = 0) -> None:
        self.sampling = sampling
        self.generator = torch.Generator(device).manual_seed(seed)
        self._processors = LogitsProcessorList()
        if sampling.is_greedy:
            return
        if sampling.temperature != 1.0:
            self._processors.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            self._processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            self._processors.append(TopPLogitsWarper(sampling.top_p))

    def probs(self, logits: Tensor) -> Tensor:
        """The distribution [rows, vocab] that tokens are drawn from, behind `logits` of that shape.

        At least float32: in half precision a softmax over a vocabulary does not sum to one.
        """
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return torch.softmax(self._processors(None, logits.to(dtype)), -1)

    def uniform(self, rows: int) -> Tensor:
        """`rows` numbers in [0, 1), float64, the same if a tree of so many is padded."""
        device, size = self.generator.device, padded_size(rows)
        drawn = torch.rand(size, dtype=torch.float64, device=device, generator=self.generator)
        return drawn[:rows]

    def draw(self, probs: Tensor) -> Tensor:
        """One token [rows] from each row of `probs` [rows, vocab], which need not sum to one."""
        cdf = probs.double().cumsum(-1)
        at = self.uniform(probs.shape[0])[:, None] * cdf[:, -1:]
        return torch.searchsorted(cdf, at, right=True).squeeze(-1).clamp_(max=probs.shape[-1] - 1)

    def draw_distinct(self, probs: Tensor, count: int) -> Tensor:
        """`count` tokens [rows, count] of each row, drawn in this order without replacement.

        Where fewer tokens have a probability, others follow them.
        """
        # Of waiting times with rates p, the shortest ones are such a draw.
        times = torch.empty_like(probs, dtype=torch.float64)
        times.exponential_(generator=self.generator)
        return (probs / times).topk(count).indices

    def pick(self, logits: Tensor) -> Tensor:
        """The next token [rows] behind `logits` [rows, vocab]: the best one, or one drawn."""
        return logits.argmax(-1) if self.sampling.is_greedy else self.draw(self.probs(logits))


class Rule(Protocol):
    """Decides a step. A method may bring its own; the default is `lossless`.

    Returns what `select` does, and waits for nothing.
    """

    def __call__(self, tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor: ...


def judge(
    rule: Rule, tree: DraftTree, logits: Tensor, sampler: Sampler, execution: Execution
) -> Tensor:
    """What the rule makes of a tree and the target's logits [nodes, vocab] over it, as `select`."""
    if not execution.is_static:
        return rule(tree, logits, sampler)
    layout = tree.layout
    inputs = [tree.tokens, layout.parents, layout.depths, layout.ancestors, logits]
    num_verify = tree.num_verify
    if not isinstance(num_verify, Tensor):  # filled there: a copy from the host would wait
        num_verify = torch.full((), num_verify, device=logits.device)
    inputs.append(num_verify)
    if tree.q is not None:
        inputs += [tree.q, layout.siblings]
    (chosen,) = execution.wrap(_choose)(*inputs, rule=rule, sampler=sampler)
    return chosen


def _choose(
    tokens: Tensor, parents: Tensor, depths: Tensor, ancestors: Tensor, logits: Tensor,
    num_verify: Tensor, *drawn: Tensor, rule: Rule, sampler: Sampler,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A rule as a function of tensors; `drawn` holds q and the layout's siblings, if there are."""
    layout = TreeLayout(parents, depths, ancestors, max_depth=parents.shape[0] - 1)
    if drawn:
        layout.__dict__["siblings"] = drawn[1]  # known: they would have to be counted on the host
    tree = DraftTree(tokens, layout, num_verify, drawn[0] if drawn else None)
    return (rule(tree, logits, sampler),)


def lossless(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """The rule whose output is distributed as the target's own, at every temperature.

    Accept child x with probability min(1, p(x) / q(x)); on rejection p becomes
    norm(max(p - q, 0)) for the next sibling (Leviathan et al. 2023, algorithm 1; over siblings:
    SpecInfer, Miao et al. 2024). For deterministic guesses q is a point mass, and the rule
    becomes: draw the next token from p, and accept the child that carries it. Greedy decoding is
    the same with the best token in place of a drawn one.
    """
    if tree.q is None or sampler.sampling.is_greedy:
        next_ids = sampler.pick(logits)
        accepted = tree.tokens == next_ids[tree.layout.parents]
    else:
        accepted, next_ids = _reject(tree, tree.q, sampler.probs(logits), sampler)
    return select(tree, accepted, next_ids)


def _reject(tree: DraftTree, q: Tensor, p: Tensor, sampler: Sampler) -> tuple[Tensor, Tensor]:
    """Rejection sampling at all nodes at once, one round for each sibling rank."""
    n = tree.num_nodes
    may_accept = torch.arange(n, device=p.device) < tree.num_verify
    accepted = torch.zeros(n, dtype=torch.bool, device=p.device)
    is_open = torch.ones(n, dtype=torch.bool, device=p.device)
    chance = sampler.uniform(n)
    for child in tree.layout.siblings:  # [nodes]
        token = tree.tokens[child][:, None]
        proposal = q[child]
        is_tried = is_open & (child > 0) & may_accept[child]
        ratio_holds = chance[child] * proposal.gather(1, token)[:, 0] < p.gather(1, token)[:, 0]
        is_kept = is_tried & ratio_holds
        accepted = accepted.scatter(0, child, accepted[child] | is_kept)
        is_open = is_open & ~is_kept
        rest = (p - proposal).clamp_(min=0)
        mass = rest.sum(-1, keepdim=True)
        # A residual of no mass means p equals q, where only rounding can reject.
        is_rejected = (is_tried & ~is_kept)[:, None] & (mass > 0)
        p = torch.where(is_rejected, rest / mass, p)
    return accepted, sampler.draw(p)


def typical(
    tree: DraftTree, logits: Tensor, sampler: Sampler, *, threshold: float, alpha: float
) -> Tensor:
    """Medusa's typical acceptance: keep what the target finds likely enough. Not lossless.

    A node is accepted if its probability exceeds min(threshold, alpha * exp(-entropy)); of the
    deepest paths the likeliest wins, and the target's best token follows. Greedy decoding is that
    of `lossless`. Source: Cai et al. 2024, "Medusa", section 2.3.1; behaviour checked against
    Spec-Bench's model/medusa.
    """
    next_ids = logits.argmax(-1)
    if sampler.sampling.is_greedy:
        return select(tree, tree.tokens == next_ids[tree.layout.parents], next_ids)
    p = sampler.probs(logits)
    enough = torch.exp(-torch.special.entr(p).sum(-1)).mul_(alpha).clamp_(max=threshold)
    parents = tree.layout.parents
    likelihood = p[parents, tree.tokens]
    return select(tree, likelihood > enough[parents], next_ids, likelihood)


def select(
    tree: DraftTree, accepted: Tensor, next_ids: Tensor, likelihood: Tensor | None = None
) -> Tensor:
    """The deepest path of accepted nodes: [3, nodes] of who is on it, the tokens, and `next_ids`.

    `accepted` [nodes] says of each node whether it is right below its parent; `next_ids` [nodes]
    which token follows a node. Of equally deep paths the first wins, or, where `likelihood`
    [nodes] in (0, 1] is given, the one with the greatest product of it.
    """
    ok = accepted & (torch.arange(tree.num_nodes, device=accepted.device) < tree.num_verify)
    ok[0] = True
    is_path = ~(tree.layout.ancestors & ~ok).any(-1)
    depths = torch.where(is_path, tree.layout.depths, -1)
    if likelihood is None:
        best = depths.argmax()
    else:
        log = torch.where(ok, likelihood, 1.0).log_()
        log[0] = 0.0
        total = tree.layout.ancestors.to(log.dtype) @ log
        best = torch.where(depths == depths.max(), total, -torch.inf).argmax()
    on_path = tree.layout.ancestors.index_select(0, best.view(1))[0]
    return torch.stack([on_path.long(), tree.tokens, next_ids])
