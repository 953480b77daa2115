"""Audits of the stated effort find small bugs with a chance of 80 %, as docs/methodology.md says.

Such an audit takes minutes, since a rule judges one tree at a time. Here it judges all drafted
chains of an audit at once, as a forest.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

from specbench.audit import rule_cases
from specbench.audit.answer_ends import ends
from specbench.audit.contract import run_contract
from specbench.audit.numbers import Array
from specbench.audit.rule_cases import CASES, VOCAB, Outcomes
from specbench.audit.subject import Subject
from specbench.audit.token_tests import rule_test
from specbench.engine.accept import Rule, lossless
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree, TreeLayout
from tests.support.bugs import BUGS, SMALL
from tests.support.cheats import Honest
from tests.support.faulty_ends import ends_early, patched_emit
from tests.support.models import random_llama

CHAIN = CASES[1]
"""The case that shows these bugs most: a root and two drawn tokens, one after the other."""
LEVEL = 1e-4
"""The level of one test: 0.01, corrected for about 100 tests."""
NUM_AUDITS = 60
RULES = {bug.name: bug for bug in (*BUGS, *SMALL) if bug.effort and bug.check == "rule"}


def rule_of(name: str) -> Rule:
    rule: Rule = RULES[name].drafter(Target(random_llama(layers=1))).rule
    return rule


def forest(num_chains: int, draw: np.random.Generator) -> tuple[DraftTree, torch.Tensor]:
    """Chains of a root and two drawn tokens, and the target's logits after each node.

    Node 3 i is the root of chain i, node 3 i + 1 its child, and node 3 i + 2 its grandchild.
    """
    q_of_child = rule_cases._Q_CLOSE  # [vocab], the same for all children
    children = draw.choice(VOCAB, num_chains, p=q_of_child)  # [chains]
    # A grandchild's q depends on the child's token. The grandchild is the first token whose
    # cumulated probability reaches a random number of its chain.
    q_of_grandchildren = rule_cases._Q_NEXT[children]  # [chains, vocab]
    thresholds = draw.random((num_chains, 1))
    grandchildren = (thresholds > q_of_grandchildren.cumsum(1)).sum(1).clip(max=VOCAB - 1)
    roots = np.zeros_like(children)
    tokens = np.stack([roots, children, grandchildren], 1).ravel()  # [nodes]

    q_of_children = np.tile(q_of_child, (num_chains, 1))
    q_of_roots = q_of_children  # not read: roots are not drawn
    q_by_depth = [q_of_roots, q_of_children, q_of_grandchildren]
    q = np.stack(q_by_depth, 1).reshape(-1, VOCAB)  # [nodes, vocab]

    # The sampler divides logits by the temperature: softmax(logits / temperature) = p.
    p = rule_cases._NEXT[tokens]  # [nodes, vocab], of the token after each node
    p[::3] = rule_cases._ROOT
    logits = torch.from_numpy(np.log(p) * CHAIN.sampling.temperature)

    nodes = torch.arange(3 * num_chains)
    depths = nodes % 3
    child = torch.where(depths < 2, nodes + 1, 0)[None]  # [1, nodes]; 0: a leaf has none
    layout = TreeLayout(
        parents=nodes,  # parents and ancestors decide nothing, since `select` is replaced
        depths=depths,
        ancestors=torch.empty(0),
        max_depth=2,
        known_siblings=child,
    )
    tree = DraftTree(torch.from_numpy(tokens), layout, len(nodes), torch.from_numpy(q))
    return tree, logits


def chain_outcomes(rule: Rule, num_chains: int, seed: int) -> Outcomes:
    """Judge chains by a rule: return counts of the tokens that they emit, and the right
    probabilities.
    """
    tree, logits = forest(num_chains, np.random.default_rng(seed))
    # A rule ends with a call of `select`, which would look for one path in all chains.
    select = mock.Mock(side_effect=lambda tree, accepted, next_ids: next_ids)
    with (
        mock.patch("specbench.engine.accept.select", select),
        mock.patch("tests.support.faulty_rules.select", select),
    ):
        rule(tree, logits, Sampler(CHAIN.sampling, torch.device("cpu"), seed))
    (call,) = select.call_args_list
    _, accepted, next_ids = call.args
    # Each is [chains, depths]: the tokens of the nodes, True if they may follow their parents, and
    # the tokens that the rule chose after them.
    tokens, is_accepted, chosen = (
        by_node.view(-1, 3).numpy() for by_node in (tree.tokens, accepted, next_ids)
    )
    # Row 0 counts the first token of each chain, row 1 + t the tokens after an accepted token t.
    counts = np.zeros((1 + VOCAB, VOCAB + 1))  # the last column: impossible tokens
    rows = np.zeros(num_chains, dtype=int)  # the row for each chain's next token
    is_open = np.ones(num_chains, dtype=bool)  # False for nodes after a rejection
    for depth in range(3):
        # A chain emits its next node's token if that is accepted, else the chosen token.
        emitted = chosen[:, depth]
        is_kept = np.zeros(num_chains, dtype=bool)
        if depth < 2:
            is_kept = is_open & is_accepted[:, depth + 1]
            emitted = np.where(is_kept, tokens[:, depth + 1], emitted)
        np.add.at(counts, (rows[is_open], emitted[is_open]), 1)
        rows, is_open = 1 + emitted, is_kept
    p = np.stack([rule_cases._ROOT, *rule_cases._NEXT])  # [1 + vocab, vocab]
    probs = np.pad(p, ((0, 0), (0, 1)))  # 0 for impossible tokens
    return Outcomes(CHAIN.name, counts, probs)


def p_values(rule: Rule, effort: int) -> Array:
    """The p-values of `NUM_AUDITS` audits, each of which spends a share of its effort on chains."""
    num_chains = effort // len(CASES)
    audits = (chain_outcomes(rule, num_chains, seed) for seed in range(NUM_AUDITS))
    return np.array([rule_test(outcomes).p_value for outcomes in audits])


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_four_of_five_audits_find_a_small_bug_of_a_rule(name: str) -> None:
    """The bounds are 0.8 minus and plus three standard deviations for 60 audits."""
    is_found = p_values(rule_of(name), RULES[name].effort) < LEVEL
    assert 0.65 <= is_found.mean() <= 0.95


@pytest.mark.slow
def test_the_sound_rule_passes_at_the_largest_effort() -> None:
    """By chance, 5 % of p-values are below 0.05. 13 % would be three standard deviations more."""
    largest_effort = max(bug.effort for bug in RULES.values())
    p_of_audits = p_values(lossless, largest_effort)
    assert (p_of_audits < 0.05).mean() < 0.13
    assert p_of_audits.min() > LEVEL


@pytest.mark.parametrize("name", RULES)
def test_a_rule_judges_a_forest_as_it_judges_each_chain(name: str) -> None:
    rule = rule_of(name)
    forest_counts = chain_outcomes(rule, num_chains=200_000, seed=0).counts
    forest_shares = forest_counts / forest_counts.sum(1, keepdims=True)
    tree_counts = rule_cases._outcomes(rule, CHAIN, 300, vocab=VOCAB).counts
    test = rule_test(Outcomes(CHAIN.name, tree_counts, forest_shares))
    assert test.p_value is not None
    assert test.p_value > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("share_before", [0, 0.5, 1])
def test_an_answer_that_ends_early_is_found_at_any_place(
    share_before: float,
) -> None:
    """An effort of N answers finds a bug that ends one answer of 50 early in 80 % of audits."""
    effort = next(bug.effort for bug in SMALL if bug.check == "ends")
    assert 0.8 <= 1 - (1 - 1 / 50) ** effort <= 0.81

    target = Target(random_llama(layers=1))
    prompts = [tuple(range(3, 8 + i)) for i in range(24)]
    subject = Subject(target, Honest, prompts, budget=24)
    sound = run_contract("m", subject, contract=[ends])
    assert sound.status == "no difference"
    num_answers = next(test.num for test in sound.tests if test.name == "end token")
    assert num_answers >= effort

    answers = iter(range(num_answers))
    early_answer = round(share_before * (effort - 1))
    with patched_emit(ends_early(lambda: next(answers) == early_answer)):
        faulty = run_contract("m", subject, contract=[ends])
    assert [test.name for test in faulty.failures] == ["end token"]
