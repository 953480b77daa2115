"""With sampled drafts at temperature 1, the output has the target's distribution."""

from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare

from specbench.engine.accept import Sampler, Verdict, typical
from specbench.engine.decode import decode
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import Request, Sampling
from tests.methods.building import build_random
from tests.support.models import random_llama, random_target

VOCAB = 6
PROMPT = (3, 4, 5, 3, 4, 5, 3, 4)


@torch.inference_mode()
def joint(model: torch.nn.Module, sampling: Sampling) -> torch.Tensor:
    """Probabilities of the three tokens after the prompt [vocab, vocab, vocab]."""
    pairs = torch.cartesian_prod(torch.arange(VOCAB), torch.arange(VOCAB))
    ids = torch.cat([torch.tensor(PROMPT).repeat(len(pairs), 1), pairs], 1)
    rows = model(ids).logits[:, -3:]
    sampler = Sampler(sampling, torch.device("cpu"), 0)
    first, second, third = (sampler.probs(rows[:, i]) for i in range(3))
    one = first.gather(1, pairs[:, :1]) * second.gather(1, pairs[:, 1:])
    return (one * third).view(VOCAB, VOCAB, VOCAB)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tree", "sampling"), [("eagle_25", Sampling(1.5, top_p=0.6)), ("3x2", Sampling(1.0))], ids=str
)
def test_tokens_after_sampled_drafts_have_the_targets_distribution(
    tree: str, sampling: Sampling, tmp_path: Path
) -> None:
    """The contract suite tests every method; this one is for draws without replacement."""
    model = random_llama(layers=3, vocab_size=VOCAB, max_position_embeddings=64)
    target = Target(model)
    drafter = build_random("eagle", target, tmp_path, tree=tree)
    exact = joint(model, sampling).flatten()
    draws, counts = 1500, torch.zeros(VOCAB**3)
    places = torch.tensor([VOCAB * VOCAB, VOCAB, 1])
    for seed in range(draws):
        tokens = decode(target, drafter, Request(PROMPT, 3, sampling, seed=seed)).token_ids
        counts[(torch.tensor(tokens) * places).sum()] += 1
    assert counts[exact == 0].sum() == 0
    is_common = exact * draws >= 5
    observed = torch.cat([counts[is_common], counts[~is_common].sum()[None]])
    wanted = torch.cat([exact[is_common], exact[~is_common].sum()[None]]) * draws
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    assert chisquare(observed.numpy(), wanted.numpy()).pvalue > 1e-3


def test_draws_without_replacement_come_in_the_right_order_of_probability() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]])
    sampler = Sampler(Sampling(1.0), torch.device("cpu"), 0)
    drawn = torch.cat([sampler.draw_distinct(probs, 2) for _ in range(20000)])
    for (first, second), expected in {
        (0, 1): 0.5 * 0.3 / 0.5, (0, 2): 0.5 * 0.2 / 0.5, (1, 0): 0.3 * 0.5 / 0.7,
        (1, 2): 0.3 * 0.2 / 0.7, (2, 0): 0.2 * 0.5 / 0.8, (2, 1): 0.2 * 0.3 / 0.8,
    }.items():  # fmt: skip
        share = ((drawn[:, 0] == first) & (drawn[:, 1] == second)).double().mean()
        assert share == pytest.approx(expected, abs=0.015)


def test_a_sampled_tree_has_the_distribution_of_each_node(tmp_path: Path) -> None:
    """Rows of q sum to one, hold the node's own token, and none of its earlier siblings."""
    target = random_target(layers=4)
    drafter = build_random("eagle", target, tmp_path)
    trees: list[DraftTree] = []
    inner = drafter.propose

    def keep(state: object) -> DraftTree:
        trees.append(inner(state))  # type: ignore[arg-type]
        return trees[-1]

    drafter.propose = keep  # type: ignore[method-assign]
    for sampling in (Sampling(1.0), Sampling(1.0, top_p=0.3)):
        decode(target, drafter, Request((5, 6, 7), 20, sampling, seed=1))
    for tree in trees:
        assert tree.q is not None
        parents, tokens = tree.layout.parents.tolist(), tree.tokens.tolist()
        torch.testing.assert_close(tree.q[1:].sum(-1), torch.ones(25).to(tree.q))
        for node in range(1, tree.num_nodes):
            earlier = [i for i in range(1, node) if parents[i] == parents[node]]
            assert tree.q[node, tokens[node]] > 0
            assert all(tree.q[node, tokens[i]] == 0 for i in earlier)
            assert tokens[node] not in [tokens[i] for i in earlier]


def test_typical_acceptance_takes_the_most_likely_of_the_likely_tokens() -> None:
    layout = TreeLayout.from_parents([0, 0, 0, 1, 2], "cpu")
    tree = DraftTree(torch.tensor([9, 1, 2, 3, 3]), layout, num_verify=5)
    p = torch.full((5, 10), 1e-9)
    p[0, 1], p[0, 2] = 0.4, 0.6
    p[1, 3], p[1, 4] = 0.7, 0.3
    p[2, 3], p[2, 4] = 0.5, 0.5
    p[3, 5] = p[4, 6] = 1.0
    sampler = Sampler(Sampling(1.0), torch.device("cpu"), 0)
    verdict = Verdict.read(typical(tree, p.log(), sampler, threshold=0.09, alpha=0.3))
    assert (verdict.path, verdict.token_ids) == ((0, 2, 4), (2, 3, 6))
    strict = Verdict.read(typical(tree, p.log(), sampler, threshold=0.55, alpha=10.0))
    assert (strict.path, strict.token_ids[0]) == ((0, 2), 2)
