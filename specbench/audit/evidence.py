"""Numbers that show if tokens were drawn from the target's distribution, and logits were right.

The reference is one plain forward of the model over prompt and answer, without the engine's
cache, masks or kernels. A watched drafter keeps each step's tree and the target's logits along
the accepted path. It passes everything on to the method's own drafter, so that loop, caches
and graphs are as in a measured completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.planting import plant
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.types import Request, Sampling

NUM_BEST = 100
"""Logits of a position that are compared: the best ones. The others may be masked."""
UNKNOWN = -1
_CHUNK = 32
_SLACK, _HALF_SLACK = 1e-3, 0.05
"""Share of top-p by which rounding may move the border of the kept tokens."""


class ProposedTree(NamedTuple):
    """A draft tree on the host, without scratch nodes. The root's parent is itself."""

    tokens: Sequence[int]
    parents: Sequence[int]


class WatchedDrafter(Drafter):
    """A drafter whose trees and accepted logits are kept.

    The loop shows a step's result before the next step only, so the logits of the last step
    are missing. `guesses` hold rows as `guess_positions` returns them.
    """

    def __init__(self, drafter: Drafter, seed: int = 0) -> None:
        self.needs, self.rule = drafter.needs, drafter.rule
        self.tree_sizes = drafter.tree_sizes
        self.trees: list[ProposedTree] = []
        self.logits: list[Tensor] = []  # [nodes of the path, vocab] each; the prefill's first
        self.guesses: list[Tensor] = []
        self._drafter = drafter
        self._generator = torch.Generator().manual_seed(seed)

    def start(self, state: State, prefill: Forward) -> None:
        self.logits.append(prefill.logits[-1:].clone())
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        tree = self._drafter.propose(state)
        n = int(tree.num_verify)
        tokens, parents = tree.tokens[:n].tolist(), tree.layout.parents[:n].tolist()
        self.trees.append(ProposedTree(tokens, parents))
        if tree.q is not None and n > 1:
            self.guesses.append(guess_positions(tree.tokens[1:n], tree.q[1:n], self._generator))
        return tree

    def observe(self, state: State, result: StepResult) -> None:
        path = torch.tensor(result.verdict.path, device=result.forward.logits.device)
        self.logits.append(result.forward.logits.index_select(0, path))
        self._drafter.observe(state, result)


class Plain(Drafter):
    """Proposes the pending token alone."""

    tree_sizes = (1,)

    def propose(self, state: State) -> DraftTree:
        return state.chain()


class Planted(Drafter):
    """A method's drafter with the right token planted in its trees, at changing depths and ranks.

    Random drafts are hardly ever accepted, so caches, residuals and bonus tokens deep in a tree
    would not be tested.

    `answer` are all right tokens, prompt included. Steps are counted from `first_step`: in
    even ones the path goes to the deepest node of the tree, in odd ones to children of
    changing ranks. The deepest tree so far counts as an even one. `first_guesses` are
    the method's own of the next token, by the number of tokens before it, `depths` the depths
    of the trees as far as the budget allows.
    """

    def __init__(self, drafter: Drafter, answer: Sequence[int], first_step: int = 0) -> None:
        self.needs, self.rule = drafter.needs, drafter.rule
        self.tree_sizes = drafter.tree_sizes
        self.first_guesses: dict[int, list[int]] = {}
        self.num_planted: list[int] = []
        self.depths: list[int] = []
        self._drafter, self._answer, self._first_step = drafter, answer, first_step

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        tree, at = self._drafter.propose(state), len(state.token_ids)
        n = int(tree.num_verify)
        pairs = zip(tree.tokens[1:n].tolist(), tree.layout.parents[1:n].tolist(), strict=True)
        self.first_guesses[at] = [token for token, parent in pairs if parent == 0]
        right = self._answer[at : at + tree.layout.max_depth]
        deepest = int(tree.layout.depths[:n].max())  # that may be accepted
        depth = min(deepest, state.remaining - 1)
        is_deepest = depth > max(self.depths, default=0)
        step = 0 if is_deepest else self._first_step + len(self.num_planted)
        planted = plant(tree, right, step)
        self.num_planted.append(min(planted[1], state.remaining - 1))
        self.depths.append(depth)
        return planted[0]

    def observe(self, state: State, result: StepResult) -> None:
        self._drafter.observe(state, result)


def guess_positions(tokens: Tensor, q: Tensor, generator: torch.Generator) -> Tensor:
    """Rows [guesses, 4] about drafted `tokens` [guesses] and their distributions `q` [.., vocab].

    The columns are the position of the token in its distribution, with tokens by falling
    probability and by id; its probability; and the distribution's mass. A token that was drawn
    from q has positions that are uniform in [0, 1): within the token's own share they are
    drawn.
    """
    q, tokens = q.double().cpu(), tokens.cpu()
    mass = q.sum(-1)
    own = q.gather(1, tokens[:, None])
    likelier = q.masked_fill(q <= own, 0.0).sum(-1)
    equal = q.masked_fill(q != own, 0.0).sum(-1)
    before = q.cumsum(-1).gather(1, tokens[:, None])[:, 0] - own[:, 0]
    within = torch.rand(len(tokens), dtype=torch.float64, generator=generator)
    by_rank, by_id = (likelier + within * equal) / mass, (before + within * own[:, 0]) / mass
    return torch.stack([by_rank, by_id, own[:, 0], mass], 1)


Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Equally long arrays of numbers. Those of several answers can be joined."""

    def __len__(self) -> int:
        return len(next(iter(self._arrays())))

    def _arrays(self) -> list[Array]:
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """One object with the rows of all of them, which may be none."""
        if not parts:
            return cls(*np.zeros((len(fields(cls)), 0)))
        columns = zip(*(part._arrays() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))

    def where(self, is_kept: Array) -> Self:
        """The rows at which the array [rows] is true."""
        return type(self)(*(array[is_kept] for array in self._arrays()))


@dataclass(frozen=True, slots=True, eq=False)
class TokenNumbers(Columns):
    """Emitted tokens against the distributions p that they should be drawn from; arrays [tokens].

    `surprise` is -log p(token) in nats, `rank` the mass of the likelier tokens plus half its
    own; both come with the variance and third central moment that they have if the token is a
    draw. The expected rank is 1/2. A token is not `is_possible` if p rules it out beyond
    rounding. `position` is uniform in [0, 1) if the token is a draw, with tokens by id;
    `middle` is the middle of the token's stretch there, and has the rank's variance. `tail` is
    the mass of the tokens that are at most as likely. `depth` is the token's place in its
    step, from 1; 0 for the prefill's token, with which an answer begins. `has_draft` is 1 if
    the step tried guesses there, 0 if the token could only be the bonus. Both are UNKNOWN
    without steps.
    """

    surprise: Array
    entropy: Array
    surprise_variance: Array
    surprise_third: Array
    rank: Array
    rank_variance: Array
    rank_third: Array
    is_best: Array
    best: Array
    position: Array
    middle: Array
    tail: Array
    is_possible: Array
    depth: Array
    has_draft: Array


@dataclass(frozen=True, slots=True, eq=False)
class LogitNumbers(Columns):
    """Logits of the engine against a plain forward's; arrays [rows].

    `deviation` is the largest difference among the best logits, `scale` the largest magnitude
    of these, `is_flipped` true if the best token is another one. `is_exact` is 1 if all logits
    have the bits that the engine's own steps over the plain answer give, 0 if not; UNKNOWN
    where bits depend on the shape of a step.
    """

    deviation: Array
    scale: Array
    is_flipped: Array
    is_exact: Array


@dataclass(frozen=True, slots=True, eq=False)
class GuessNumbers(Columns):
    """Drawn guesses against the q that they claim, as in `guess_positions`; [guesses]."""

    by_rank: Array
    by_id: Array
    probability: Array
    mass: Array


@dataclass(frozen=True, slots=True)
class Evidence:
    """Numbers about one answer."""

    token_ids: tuple[int, ...]
    tokens: TokenNumbers
    logits: LogitNumbers
    guesses: GuessNumbers


@torch.inference_mode()
@without_cudnn_attention()
def watched_evidence(target: Target, drafter: Drafter, request: Request) -> Evidence:
    """Complete a request with a watched drafter, and compare it with a plain forward."""
    watched = WatchedDrafter(drafter, request.seed)
    done = decode(target, watched, request)
    reference = plain_logits(target, request.prompt_ids, done.token_ids)
    tokens = token_numbers(reference, done.token_ids, request.sampling)
    depth, has_draft = places(done.accept_lengths, done.token_ids, watched.trees)
    # The prefill's row, then a row for each token of each step: the token that follows the node.
    rows = torch.cat([*watched.logits, reference[:0]])
    logits = logit_numbers(rows, reference[: len(rows)])
    if max(done.num_nodes, default=0) <= target.max_exact_rows:
        plain = plain_steps(target, request.prompt_ids, done.token_ids[: len(rows)])
        logits = replace(logits, is_exact=(rows == plain).all(-1).long().cpu().numpy())
    tokens = replace(tokens, depth=depth, has_draft=has_draft)
    guesses = GuessNumbers.join([GuessNumbers(*one.numpy().T) for one in watched.guesses])
    return Evidence(done.token_ids, tokens, logits, guesses)


def plain_logits(target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] before each token of an answer, by the model's own forward."""
    ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=target.device)
    logits: Tensor = target.model(
        input_ids=ids, use_cache=False, logits_to_keep=len(token_ids)
    ).logits[0]
    return logits


@torch.inference_mode()
@without_cudnn_attention()
def is_wrong(target: Target, prompt: Sequence[int], answer: Sequence[int], tie: float) -> bool:
    """True if a token of an answer is not the best one: its logit lies below by more than the
    share `tie` of the position's scale.
    """
    logits = plain_logits(target, prompt, answer)
    best = logits.topk(min(NUM_BEST, logits.shape[1])).values
    own = logits.gather(1, torch.tensor(answer, device=logits.device)[:, None])
    return bool((best[:, :1] - own > tie * best.abs().amax(1, keepdim=True)).any())


def plain_steps(target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] before each token of an answer, by steps over chains of its tokens."""
    logits = [target.prefill(prompt_ids, num_new=len(token_ids)).logits.clone()]
    tokens = torch.tensor(token_ids[:-1], dtype=torch.long, device=target.device)
    for start in range(0, len(tokens), target.max_exact_rows):
        chain = DraftTree.chain(tokens[start : start + target.max_exact_rows])
        logits.append(target.forward(chain).logits)
        target.commit(range(chain.num_nodes))
    target.cache.reset()
    return torch.cat(logits)


def token_numbers(logits: Tensor, token_ids: Sequence[int], sampling: Sampling) -> TokenNumbers:
    """Numbers about tokens drawn after these logits [tokens, vocab], whose steps are unknown."""
    tokens = torch.tensor(token_ids, device=logits.device)[:, None]
    slack = _HALF_SLACK if logits.dtype.itemsize < 4 else _SLACK
    loose = replace(
        sampling,
        top_p=min(1.0, sampling.top_p + slack),
        top_k=sampling.top_k and sampling.top_k + max(1, round(10 * slack * sampling.top_k)),
    )
    if sampling.is_greedy:
        sampling = loose = Sampling(1.0)
    samplers = [Sampler(one, logits.device) for one in (sampling, loose)]
    within = torch.from_numpy(np.random.default_rng(token_ids).random(len(token_ids)))
    chunks = zip(
        *(x.split(_CHUNK) for x in (logits, tokens, within.to(logits.device))), strict=True
    )
    parts = [_chunk(*chunk, *samplers) for chunk in chunks]
    arrays: list[Array] = [*torch.cat(parts, 1).cpu().numpy()]
    depth = np.full(len(token_ids), UNKNOWN)
    depth[0] = 0
    arrays = [*arrays[:-1], arrays[-1] > 0, depth, np.full(len(token_ids), UNKNOWN)]
    return TokenNumbers(*arrays)


def _chunk(
    logits: Tensor, tokens: Tensor, within: Tensor, sampler: Sampler, loose: Sampler
) -> Tensor:
    """Rows of numbers [13, tokens] for logits [tokens, vocab] and tokens [tokens, 1].

    `within` [tokens] places a token within its own share of the distribution.
    """
    p = sampler.probs(logits.double())
    own = p.gather(1, tokens)
    log = p.clamp_min(torch.finfo(p.dtype).tiny).log()
    entropy = -(p * log).sum(-1)
    around = -log - entropy[:, None]
    variance, third = (p * around**2).sum(-1), (p * around**3).sum(-1)
    surprise = -log.gather(1, tokens)[:, 0]
    likelier = p.masked_fill(p <= own, 0.0).sum(-1)
    rank = likelier + p.masked_fill(p != own, 0.0).sum(-1) / 2
    # The rank is the middle of the drawn token's own stretch of [0, 1), on which tokens lie end to
    # end by falling probability. A uniform point of [0, 1) has variance 1/12 and no third moment.
    # Given its stretch of length w and middle m it has mean m, variance w**2/12 and no third
    # moment; so its moments are those of m plus E[w**2/12] and 3 E[(m - 1/2) w**2/12], where the
    # stretch has probability w. What is left are the moments of m, which is the rank.
    ordered = p.sort(-1, descending=True).values
    middle = ordered.cumsum(-1) - ordered / 2 - 0.5
    rank_variance = (1 - (ordered**3).sum(-1)) / 12
    rank_third = -(ordered**3 * middle).sum(-1) / 4
    tail = p.masked_fill(p > own, 0.0).sum(-1)
    end = p.cumsum(-1).gather(1, tokens)[:, 0]
    position, middle = end - own[:, 0] * (1 - within), end - own[:, 0] / 2
    best = ordered[:, 0]
    is_ruled_out = own[:, 0] <= 0
    is_possible = ~is_ruled_out | (loose.probs(logits.double()).gather(1, tokens)[:, 0] > 0)
    # A token at the border of the kept ones says nothing.
    surprise = torch.where(is_ruled_out, entropy, surprise)
    rank = torch.where(is_ruled_out, 0.5, rank)
    middle = torch.where(is_ruled_out, 0.5, middle)
    tail = torch.where(is_ruled_out & is_possible, 1.0, tail)
    return torch.stack(
        [
            surprise, entropy, variance, third, rank, rank_variance, rank_third,
            (own[:, 0] >= best).double(), best, position, middle, tail, is_possible.double(),
        ]
    )  # fmt: skip


def logit_numbers(found: Tensor, expected: Tensor) -> LogitNumbers:
    """Numbers about logits [rows, vocab] and their reference."""
    found, expected = found.double(), expected.double()
    best = expected.topk(min(NUM_BEST, expected.shape[1])).indices
    reference = expected.gather(1, best)
    deviation = (found.gather(1, best) - reference).abs().amax(-1)
    is_flipped = found.argmax(-1) != best[:, 0]
    columns = (deviation, reference.abs().amax(-1), is_flipped, torch.full_like(deviation, UNKNOWN))
    return LogitNumbers(*(column.cpu().numpy() for column in columns))


def places(
    accept_lengths: Sequence[int], token_ids: Sequence[int], trees: Sequence[ProposedTree]
) -> tuple[Array, Array]:
    """`depth` and `has_draft` [tokens] of an answer's tokens; see `TokenNumbers`."""
    depth, has_draft = [0], [0]
    for step, count in enumerate(accept_lengths):
        depth += range(1, count + 1)
        if not trees:
            has_draft += [UNKNOWN] * count
            continue
        tree, node = trees[step], 0
        for token in token_ids[len(has_draft) : len(has_draft) + count]:
            children = [i for i, parent in enumerate(tree.parents) if parent == node and i]
            has_draft.append(int(bool(children)))
            node = next((i for i in children if tree.tokens[i] == token), 0)
    return np.array(depth), np.array(has_draft)
