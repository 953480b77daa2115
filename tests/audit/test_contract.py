"""The contract kit finds every bug of the catalogue, and passes sound methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import Tensor

from specbench.audit import contract as checks
from specbench.audit import rule_cases
from specbench.audit.contract import CONTRACT, run_contract
from specbench.audit.drafters import Plain
from specbench.audit.results import PLANTED
from specbench.audit.rule_cases import rule_outcomes
from specbench.audit.subject import Subject
from specbench.audit.token_tests import rule_tests
from specbench.audit.verdicts import corrected
from specbench.engine.accept import lossless
from specbench.engine.decode import decode
from specbench.engine.drafter import State
from specbench.engine.planting import plant
from specbench.engine.sampler import Sampler
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors.kinds import ContractFault
from specbench.log.audit import AuditTest, MethodAudit
from specbench.types import Request, Sampling
from tests.support.bugs import BUGS, SOUND, Variant
from tests.support.cheats import BUDGET, PROMPTS, DecodesInBuild, Honest
from tests.support.models import prompts, random_llama
from tests.support.noisy_target import NoisyTarget

MODEL = random_llama(layers=2)
FIRST = {bug.check: bug for bug in reversed(BUGS)}
TRIED = [bug for bug in BUGS if bug.check == "ends" or bug is FIRST[bug.check]]
"""All bugs of `ends`, and the first bug of every other check.

`benchmarks/audit_power.py` tries all bugs.
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer draws than `specbench audit --method` makes."""
    monkeypatch.setattr(checks, "NUM_TOKENS", dict.fromkeys(checks.NUM_TOKENS, 400))
    monkeypatch.setattr(checks, "NUM_OUTCOMES", 8000)


def subject(variant: Variant) -> Subject:
    target = variant.target(MODEL)
    return Subject(target, lambda: variant.drafter(target), prompts(), budget=40)


def test_the_catalogue_has_at_least_20_bugs_and_every_check_finds_one() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
    assert {bug.check for bug in BUGS} == {check.__name__ for check in CONTRACT}


@pytest.mark.slow
@pytest.mark.parametrize("bug", TRIED, ids=lambda bug: bug.name)
def test_each_planted_bug_is_found_by_its_check(bug: Variant) -> None:
    with bug.patch():
        result = run_contract(bug.name, subject(bug), contract=[getattr(checks, bug.check)])
    assert result.status == "bug"


ELSEWHERE_RIGHT = (
    "top-p again on the residual",
    "wrong below three levels",
    "wrong in trees of nine nodes",
    "p without top-k",
    "greedy below a temperature of 0.5",
    "wrong positions far on",
)
"""Bugs that show only in some settings, trees and contexts."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE_RIGHT)
def test_a_bug_of_some_settings_trees_and_contexts_is_found(name: str) -> None:
    (bug,) = (bug for bug in BUGS if bug.name == name)
    long_prompt = tuple(3 + number % 40 for number in range(160))
    tested = replace(subject(bug), long_prompts=[long_prompt])
    assert run_contract(name, tested, contract=[getattr(checks, bug.check)]).status == "bug"


@pytest.mark.slow
@pytest.mark.parametrize("sound", SOUND[:2], ids=lambda sound: sound.name)
def test_a_sound_method_passes(sound: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NUM_TOKENS", dict.fromkeys(checks.NUM_TOKENS, 150))
    monkeypatch.setattr(checks, "NUM_OUTCOMES", 500)
    result = run_contract(sound.name, subject(sound))
    assert (result.status, result.fault, result.failures) == ("no difference", "", ())
    assert result.num_tokens >= 150
    assert result.smallest_tv is not None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ContractFault("The draft is not a tree: node 1"), "The draft is not a tree: node 1"),
        (ValueError("node 1"), "ValueError: node 1"),
    ],
)
def test_a_fault_begins_with_the_name_of_its_part(error: Exception, message: str) -> None:
    def broken(_: Subject) -> Iterator[AuditTest]:
        raise error

    result = run_contract("m", subject(SOUND[0]), contract=[broken])
    assert result.fault.startswith(f"broken: {message}")


def test_a_method_declared_lossy_fails_only_as_a_sampler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "NUM_OUTCOMES", 500)
    typical = subject(next(bug for bug in BUGS if bug.name == "typical acceptance"))
    assert run_contract("m", typical, contract=[checks.rule], is_lossless=False).status == "lossy"
    assert run_contract("m", typical, contract=[checks.rule]).status == "bug"


def test_planted_tokens_change_depth_and_rank_and_keep_siblings_distinct() -> None:
    layout = TreeLayout.from_parents([0, 0, 0, 0, 2, 4], "cpu")
    tree = DraftTree(torch.tensor([9, 1, 2, 3, 4, 5]), layout, 6)
    deep, depth = plant(tree, [7, 8, 6], step=0)
    assert (deep.tokens.tolist(), depth) == ([9, 1, 7, 3, 8, 6], 3)
    ranks = {tuple(plant(tree, [7], step)[0].tokens.tolist()[1:4]).index(7) for step in (1, 3, 5)}
    assert ranks == {0, 1, 2}
    swapped, _ = plant(tree, [3], step=0)
    assert swapped.tokens.tolist()[1:4] == [1, 3, 2]
    assert tree.tokens.tolist() == [9, 1, 2, 3, 4, 5]


class DeepInOddSteps(NoisyTarget):
    """A drafter whose trees are deepest below the second child in every other step."""

    def propose(self, state: State) -> DraftTree:
        tree = super().propose(state)
        if self._step % 2:
            return state.chain([int(tree.tokens[1])])
        layout = TreeLayout.from_parents([0, 0, 0, 2, 3], "cpu")
        return replace(tree, tokens=tree.tokens[:5], layout=layout, num_verify=5)


def test_a_tree_that_is_deepest_in_any_step_is_planted_to_its_full_depth() -> None:
    target = Target(MODEL)
    tested = Subject(target, lambda: DeepInOddSteps(target), prompts()[:2], budget=16)
    tests = {test.name: test for test in checks.planted(tested)}
    assert (tests["full depth of the trees"].num, tests["full depth of the trees"].effect) == (3, 0)
    assert tests[PLANTED].num > 0 == tests[PLANTED].effect == tests["planted draft tokens"].effect


@pytest.mark.parametrize("is_cheat", [False, True])
def test_answers_decoded_in_build_are_found_on_prompts_that_no_task_has(is_cheat: bool) -> None:
    target = Target(MODEL)
    task_prompts, unknown = (
        PROMPTS[:6],
        [(*prompt[:3], 41, *prompt[3:]) for prompt in PROMPTS[6:12]],
    )
    tested = Subject(
        target,
        lambda: DecodesInBuild(target, task_prompts) if is_cheat else Honest(),
        unknown[:4],
        budget=BUDGET,
        task_prompts=task_prompts,
        unseen_prompts=unknown,
    )
    result = run_contract("m", tested, contract=[checks.recall])
    assert result.status == ("bug" if is_cheat else "no difference")
    assert not is_cheat or result.tests[-2].effect > 3


@pytest.mark.parametrize("num_known", [0, 16])
def test_known_answers_to_a_third_of_the_prompts_are_found(num_known: int) -> None:
    target = Target(MODEL)
    task_prompts = [
        (*prompt[:2], 3 + number, *prompt[2:]) for number in range(4) for prompt in PROMPTS[:12]
    ]
    unknown = [(*prompt[:3], 41, *prompt[3:]) for prompt in task_prompts]
    tested = Subject(
        target,
        lambda: DecodesInBuild(target, task_prompts[:num_known]),
        unknown[:2],
        budget=BUDGET,
        task_prompts=task_prompts,
        unseen_prompts=unknown,
    )
    mean, pairs = run_contract("m", tested, contract=[checks.recall]).tests[-2:]
    assert mean.effect < 2.0 and not mean.is_failed
    assert pairs.effect == pytest.approx(num_known, abs=1) and pairs.is_failed == bool(num_known)


class KnowsToTheEnd(DecodesInBuild):
    """A cheat that knows the answers up to their end tokens, as a run stores them."""

    def __init__(
        self, target: Target, prompts: Sequence[tuple[int, ...]], eos_ids: frozenset[int]
    ) -> None:
        super().__init__(target, prompts)
        for prompt, token_ids in self.answers.items():
            ends_at = (
                number
                for number, token in enumerate(token_ids[len(prompt) :], start=len(prompt))
                if token in eos_ids
            )
            del token_ids[next(ends_at, len(token_ids)) + 1 :]


@pytest.mark.parametrize("is_cheat", [False, True])
def test_answers_known_up_to_their_ends_are_found(is_cheat: bool) -> None:
    target = Target(MODEL)
    unknown = [(*prompt[:3], 41, *prompt[3:]) for prompt in PROMPTS]
    answers = [decode(target, Plain(), Request(prompt, BUDGET)).token_ids for prompt in PROMPTS]
    # Tokens that occur in answers, but never among the first nine tokens.
    eos_ids = frozenset({*chain(*answers)} - {*chain(*(ids[:9] for ids in answers))})
    tested = Subject(
        target,
        lambda: KnowsToTheEnd(target, PROMPTS, eos_ids) if is_cheat else Honest(),
        unknown[:2],
        budget=2 * BUDGET,
        task_prompts=PROMPTS,
        unseen_prompts=unknown,
        eos_ids=eos_ids,
    )
    assert run_contract("m", tested, contract=[checks.recall]).tests[-1].is_failed == is_cheat


@pytest.mark.parametrize("is_hopeless", [False, True])
def test_a_rule_for_larger_vocabularies_is_judged_or_reported(is_hopeless: bool) -> None:
    def sixty_four_best(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
        if is_hopeless:
            raise KeyError("codebook")
        best = logits.topk(64)
        return lossless(tree, torch.full_like(logits, -1e4).scatter(1, *best[::-1]), sampler)

    tests = rule_tests(rule_outcomes(sixty_four_best, 500))
    assert len(tests) == (1 if is_hopeless else 10)
    assert [test.num for test in tests] == ([0] if is_hopeless else [50] * 10)
    (result,) = corrected([MethodAudit("m", 1.0, 1.0, tests=tuple(tests))])
    assert not result.failures


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.7), (3, 1.0), (3, 0.8), (2, 0.6)])
def test_the_cases_of_rules_keep_the_tokens_that_the_sampler_keeps(
    top_k: int, top_p: float
) -> None:
    sampling = Sampling(1.0, top_p, top_k)
    sampler = Sampler(sampling, torch.device("cpu"))
    for p in (rule_cases._ROOT, *rule_cases._NEXT):
        expected_p = sampler.probs(torch.from_numpy(p).log()[None])[0].numpy()
        assert rule_cases._kept(p, sampling) == pytest.approx(expected_p)


def test_a_rule_that_emits_an_impossible_token_of_a_larger_vocabulary_fails() -> None:
    def last_of_sixty_four(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
        worst = logits[:, :64].argmin(-1)
        return lossless(tree, torch.full_like(logits, -1e4).scatter(1, worst[:, None], 0), sampler)

    tests = rule_tests(rule_outcomes(last_of_sixty_four, 500))
    assert len(tests) == 10
    (result,) = corrected([MethodAudit("m", 1.0, 1.0, tests=tuple(tests))])
    assert result.failures
