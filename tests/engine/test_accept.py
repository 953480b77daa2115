from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from specbench.engine.accept import AcceptedPath, Sampler, Verdict, lossless
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import Sampling

CPU = torch.device("cpu")


def sampler(temperature: float = 0.0, seed: int = 0, top_p: float = 1.0, top_k: int = 0) -> Sampler:
    return Sampler(Sampling(temperature, top_p, top_k), CPU, seed)


def tree(tokens: list[int], parents: list[int], num_verify: int | None = None) -> DraftTree:
    return DraftTree(
        torch.tensor(tokens),
        TreeLayout.from_parents(parents, CPU),
        len(tokens) if num_verify is None else num_verify,
    )


def logits_for(best: list[int], vocab: int = 10) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(best), vocab).float()


def test_greedy_takes_the_deepest_path_that_the_target_agrees_with() -> None:
    #      root 1 -> 2 -> 3 (agreed), root -> 4
    verdict = Verdict.read(
        lossless(tree([1, 4, 2, 3], [0, 0, 0, 2]), logits_for([2, 9, 3, 7]), sampler())
    )
    assert verdict == Verdict(path=(0, 2, 3), token_ids=(2, 3, 7), next_ids=(2, 9, 3, 7))
    assert verdict.num_accepted == 2


def test_a_right_node_below_a_wrong_one_is_not_accepted() -> None:
    verdict = Verdict.read(lossless(tree([1, 4, 3], [0, 0, 1]), logits_for([2, 3, 7]), sampler()))
    assert verdict.token_ids == (2,)


def test_a_scratch_node_is_never_accepted_but_its_result_is_shown() -> None:
    verdict = Verdict.read(
        lossless(tree([1, 2, 3], [0, 0, 1], num_verify=1), logits_for([2, 3, 7]), sampler())
    )
    assert verdict.path == (0,)
    assert verdict.next_ids == (2, 3, 7)


def test_among_equally_deep_paths_the_first_one_wins() -> None:
    verdict = Verdict.read(lossless(tree([1, 2, 2], [0, 0, 0]), logits_for([2, 5, 6]), sampler()))
    assert verdict.path == (0, 1)


@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(0, 10**6))
def test_the_path_on_the_device_equals_the_verdicts(above: list[int], seed: int) -> None:
    parents = [0, *(number % (node + 1) for node, number in enumerate(above))]
    generator = torch.Generator().manual_seed(seed)
    tokens, best = torch.randint(0, 3, (2, len(parents)), generator=generator).tolist()
    draft = tree(tokens, parents)
    chosen = lossless(draft, logits_for(best), sampler())
    verdict = Verdict.read(chosen)
    padded, plain = (
        AcceptedPath.from_choice(chosen, draft.layout.padded_path_length),
        AcceptedPath.from_verdict(verdict, CPU),
    )
    end = int(padded.last) + 1
    assert end == len(verdict.path) == int(plain.last) + 1
    assert len(padded.path) == len(padded.token_ids) == draft.layout.padded_path_length
    assert torch.equal(padded.path[:end], plain.path)
    assert torch.equal(padded.token_ids[:end], plain.token_ids)


def emitted(draft: DraftTree, p: Tensor, draws: int, seed: int) -> list[tuple[int, ...]]:
    one = sampler(1.0, seed)
    return [Verdict.read(lossless(draft, p.log(), one)).token_ids for _ in range(draws)]


def chi_square(tokens: list[int], p: Tensor) -> float:
    counts = torch.bincount(torch.tensor(tokens), minlength=len(p))
    assert counts[p == 0].sum() == 0
    seen = p > 0
    return chisquare(counts[seen].numpy(), (p[seen] * len(tokens)).double().numpy()).pvalue


@pytest.mark.parametrize("guesses", [[3], [0, 3], [3, 0, 1]])
def test_the_first_token_below_deterministic_siblings_follows_the_target(
    guesses: list[int],
) -> None:
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    draft = tree([0, *guesses], [0] * (len(guesses) + 1))
    rows = p.repeat(len(guesses) + 1, 1)
    first = [tokens[0] for tokens in emitted(draft, rows, 4000, seed=1)]
    assert chi_square(first, p) > 1e-3


def without_replacement(q: Tensor, count: int, rng: torch.Generator) -> tuple[list[int], Tensor]:
    """Siblings drawn without replacement, each with the distribution it was drawn from."""
    rows, tokens, left = [torch.zeros_like(q)], [], q.clone()
    for _ in range(count):
        left = left / left.sum()
        rows.append(left.clone())
        tokens.append(int(torch.multinomial(left, 1, generator=rng)))
        left[tokens[-1]] = 0
    return tokens, torch.stack(rows)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_first_token_below_drawn_siblings_follows_the_target(count: int) -> None:
    p = torch.tensor([0.05, 0.5, 0.15, 0.3])
    q = torch.tensor([0.4, 0.1, 0.3, 0.2])
    rng, one = torch.Generator().manual_seed(2), sampler(1.0, seed=3)
    layout = TreeLayout.from_parents([0] * (count + 1), CPU)
    first = []
    for _ in range(4000):
        tokens, rows = without_replacement(q, count, rng)
        draft = DraftTree(torch.tensor([0, *tokens]), layout, count + 1, rows)
        chosen = lossless(draft, p.log().repeat(count + 1, 1), one)
        first.append(Verdict.read(chosen).token_ids[0])
    assert chi_square(first, p) > 1e-3


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    p = torch.tensor([0.25, 0.25, 0.5])
    draft = DraftTree(
        torch.tensor([0, 2, 1]), TreeLayout.from_parents([0, 0, 1], CPU), 3, p.repeat(3, 1)
    )
    assert all(len(tokens) == 3 for tokens in emitted(draft, p.repeat(3, 1), 200, seed=4))


def test_top_p_and_top_k_remove_what_transformers_removes() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    assert (sampler(0.5, top_k=2).probs(logits)[0] > 0).tolist() == [True, True, False, False]
    assert (sampler(1.0, top_p=0.6).probs(logits)[0] > 0).tolist() == [True, False, False, False]


def test_a_token_of_no_probability_is_never_drawn() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).repeat(2000, 1)
    assert set(sampler(1.0).draw(probs).tolist()) == {1, 3}


def test_half_precision_logits_give_a_distribution_that_sums_to_one() -> None:
    logits = torch.randn(1, 32000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert sampler(1.0).probs(logits).sum().item() == pytest.approx(1, abs=1e-5)
