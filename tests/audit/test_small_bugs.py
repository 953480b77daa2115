"""Small bugs are found with a chance of 80 % at their effort, as docs/methodology.md says.

An audit of this effort takes minutes, since a rule judges one tree at a time. Here it judges all
drafted chains of an audit at once, as a forest.
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

CHAIN = 1
"""The case of a rule that shows these bugs most: two drafted tokens, one after the other."""
LEVEL = 1e-4
"""0.01, corrected for about 100 tests."""
NUM_AUDITS = 60
RULES = {bug.name: bug for bug in (*BUGS, *SMALL) if bug.effort and bug.check == "rule"}


def rule_of(name: str) -> Rule:
    rule: Rule = RULES[name].drafter(Target(random_llama(layers=1))).rule
    return rule


def forest(num: int, draw: np.random.Generator) -> tuple[DraftTree, torch.Tensor]:
    """Chains of a root and two drawn tokens, and the target's logits after each node.

    Node 3 i is the root of chain i; node 3 i + 1 is its child, and so on.
    """
    q_of_child = rule_cases._Q_CLOSE  # [vocab]
    q_of_grandchild = rule_cases._Q_NEXT  # by the child's token [vocab, vocab]
    children = draw.choice(VOCAB, num, p=q_of_child)
    cumulated = q_of_grandchild[children].cumsum(1)  # [chains, vocab]
    grandchildren = (draw.random((num, 1)) > cumulated).sum(1).clip(max=VOCAB - 1)
    roots = np.zeros_like(children)
    tokens = np.stack([roots, children, grandchildren], 1).ravel()

    unused = np.tile(q_of_child, (num, 1))  # roots are not drawn
    q_by_depth = [unused, np.tile(q_of_child, (num, 1)), q_of_grandchild[children]]
    q = np.stack(q_by_depth, 1).reshape(-1, VOCAB)  # [nodes, vocab]
    p = rule_cases._NEXT[tokens]
    p[::3] = rule_cases._ROOT

    nodes = torch.arange(3 * num)
    depths = nodes % 3
    child = torch.where(depths < 2, nodes + 1, 0)[None]  # [1, nodes]; a leaf has none
    layout = TreeLayout(nodes, depths, torch.empty(0), max_depth=2, known_siblings=child)
    logits = torch.from_numpy(np.log(p) * CASES[CHAIN].sampling.temperature)
    return DraftTree(torch.from_numpy(tokens), layout, 3 * num, torch.from_numpy(q)), logits


def chain_outcomes(rule: Rule, num: int, seed: int) -> Outcomes:
    """The outcomes of a rule on `num` chains."""
    tree, logits = forest(num, np.random.default_rng(seed))
    judged: list[Array] = []

    def read(tree: DraftTree, accepted: torch.Tensor, next_ids: torch.Tensor) -> torch.Tensor:
        by_chain = [of_nodes.view(-1, 3).numpy() for of_nodes in (accepted, next_ids)]
        judged.extend(by_chain)  # [chains, 3]
        return next_ids

    with (
        mock.patch("specbench.engine.accept.select", read),
        mock.patch("tests.support.faulty_rules.select", read),
    ):
        rule(tree, logits, Sampler(CASES[CHAIN].sampling, torch.device("cpu"), seed))
    accepted, next_ids = judged
    tokens = tree.tokens.view(-1, 3).numpy()
    # How often each token was emitted at the root (row 0), and after each token (row 1 + token).
    counts = np.zeros((1 + VOCAB, VOCAB + 1))  # the last column: impossible tokens
    rows = np.zeros(num, dtype=int)
    is_open = np.ones(num, dtype=bool)
    for depth in range(3):
        emitted = next_ids[:, depth]
        is_kept = np.zeros(num, dtype=bool)
        if depth < 2:
            is_kept = is_open & accepted[:, depth + 1]
            emitted = np.where(is_kept, tokens[:, depth + 1], emitted)
        np.add.at(counts, (rows[is_open], emitted[is_open]), 1)
        rows, is_open = 1 + emitted, is_kept
    p = np.stack([rule_cases._ROOT, *rule_cases._NEXT])
    return Outcomes(CASES[CHAIN].name, counts, np.pad(p, ((0, 0), (0, 1))))


def p_values(rule: Rule, effort: int) -> Array:
    """The p-value of each audit."""
    num = effort // len(CASES)
    outcomes = (chain_outcomes(rule, num, seed) for seed in range(NUM_AUDITS))
    return np.array([rule_test(outcomes_of_audit).p_value for outcomes_of_audit in outcomes])


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_small_bug_of_a_rule_is_found_in_four_of_five_audits_of_its_effort(name: str) -> None:
    share = (p_values(rule_of(name), RULES[name].effort) < LEVEL).mean()
    assert 0.65 <= share <= 0.95


@pytest.mark.slow
def test_the_sound_rule_is_not_found_at_the_largest_effort() -> None:
    largest_effort = max(bug.effort for bug in RULES.values())
    p_of_audits = p_values(lossless, largest_effort)
    assert (p_of_audits < 0.05).mean() < 0.13
    assert p_of_audits.min() > LEVEL


@pytest.mark.parametrize("name", RULES)
def test_a_rule_judges_a_forest_as_it_judges_each_chain(name: str) -> None:
    rule = rule_of(name)
    of_forest = chain_outcomes(rule, 200_000, 0).counts
    shares = of_forest / of_forest.sum(1, keepdims=True)
    of_chains = rule_cases._outcomes(rule, CASES[CHAIN], 300, vocab=VOCAB)
    test = rule_test(Outcomes(of_chains.name, of_chains.counts, shares))
    assert (test.p_value or 0) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("share_before", [0, 0.5, 1])
def test_an_answer_that_ends_early_is_found_wherever_it_is_among_those_of_its_effort(
    share_before: float,
) -> None:
    effort = next(bug.effort for bug in SMALL if bug.check == "ends")
    target = Target(random_llama(layers=1))
    prompts = [tuple(range(3, 8 + i)) for i in range(24)]
    subject = Subject(target, Honest, prompts, budget=24)
    sound = run_contract("m", subject, contract=[ends])
    num = next(test.num for test in sound.tests if test.name == "end token")
    assert sound.status == "no difference" and num >= effort
    answers = iter(range(num))
    early = round(share_before * (effort - 1))
    with patched_emit(ends_early(lambda: next(answers) == early)):
        contract_result = run_contract("m", subject, contract=[ends])
    assert [test.name for test in contract_result.failures] == ["end token"]
    assert 0.8 <= 1 - (1 - 1 / 50) ** effort <= 0.81
