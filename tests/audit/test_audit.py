"""The audit finds broken drafters, tolerates rounding and labels lossy methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from specbench.analysis.divergence import Agreement, find_agreements
from specbench.analysis.records import IntArray, make_table
from specbench.analysis.stats.bootstrap import FloatArray
from specbench.analysis.stats.permutation import TwoSamples, permutation_test
from specbench.analysis.stats.significance import holm
from specbench.audit.run import audit
from specbench.audit.verdicts import Audit, near_tie
from specbench.engine.accept import Sampler, select
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.errors import UserError
from specbench.types import Record, RecordKey, Request, Sampling
from tests.analysis.run_factory import FakeRun, header, record
from tests.support.headers import values_of
from tests.support.models import random_llama

PROMPTS = [(5, 6, 7 + i, 8, 9 + i) for i in range(5)]
BUDGET = 16


class Copier(Drafter):
    """Proposes a repetition of the sequence, which random models hardly ever produce."""

    def propose(self, state: State) -> DraftTree:
        return state.chain(state.token_ids[:2])


def gullible(tree: DraftTree, logits: torch.Tensor, sampler: Sampler) -> torch.Tensor:
    """A broken rule that always accepts the first guess."""
    first = torch.arange(tree.num_nodes) == 1
    return select(tree, first, sampler.pick(logits))


class Broken(Copier):
    rule = staticmethod(gullible)


class ToyModel:
    """A model of two layers with its methods."""

    dtype = "float32"

    def __init__(self, target: Target, drafters: Mapping[str, Drafter]) -> None:
        self._target, self._drafters = target, {"vanilla": Plain(), **drafters}
        self.num_looks = 0

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        return PROMPTS[int(record.key.sample_id)]

    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        self.num_looks += 1
        with torch.inference_mode():
            return self._target.prefill(token_ids).logits[0].double().numpy().copy()

    def entropies(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling
    ) -> FloatArray:
        return np.linspace(0.0, 2.4, len(token_ids))

    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        return decode(self._target, self._drafters[method], request).token_ids

    def sampling(self, temperature: float) -> Sampling:
        return Sampling(temperature)


class Plain(Drafter):
    def propose(self, state: State) -> DraftTree:
        return state.chain()


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(random_llama(layers=2))


def made(model: ToyModel, target: Target, methods: Mapping[str, Drafter], t: float) -> FakeRun:
    """A run of vanilla and these methods on the prompts at one temperature."""
    records = []
    for number, prompt in enumerate(PROMPTS):
        for method, drafter in {"vanilla": Plain(), **methods}.items():
            done = decode(target, drafter, Request(prompt, BUDGET, Sampling(t), seed=number))
            key = RecordKey(method, t, "gsm8k", str(number), 0, 0)
            records.append(
                Record(key, "ok", 5, done.token_ids, "", done.stop_reason, 0.1, 0.1,
                       done.accept_lengths, done.num_nodes)
            )  # fmt: skip
    described = header(["vanilla", "pld", "sps"], ("gsm8k",), (t,))
    return FakeRun(records, described)


def audited(
    run: FakeRun, model: ToyModel, *, is_recheck: bool = False, num_seeds: int = 60
) -> Audit:
    return audit(
        run, lambda _: model, is_recheck=is_recheck, num_seeds=num_seeds, say=lambda _: None
    )


@pytest.mark.parametrize("is_recheck", [False, True])
def test_accepting_tokens_that_the_target_rejects_is_a_bug(
    target: Target, is_recheck: bool
) -> None:
    methods = {"pld": Broken(), "sps": Copier()}
    model = ToyModel(target, methods)
    found = audited(made(model, target, methods, 0.0), model, is_recheck=is_recheck)
    verdicts = {one.agreement.method: one.verdict for one in found.greedy}
    assert verdicts == {"pld": "bug", "sps": "identical"}
    assert found.has_bug
    broken = found.greedy[0]
    assert broken.largest_gap is not None
    assert broken.largest_gap > broken.differences[0].threshold
    assert all(one.is_same_again in (None, False) for one in broken.differences)


def test_a_lossy_method_is_called_lossy(target: Target) -> None:
    methods = {"pld": Broken()}
    model = ToyModel(target, methods)
    run = made(model, target, methods, 0.0)
    described = values_of(run.header)
    described["methods"] = {**described["methods"], "pld": {"title": "PLD", "is_lossless": False}}
    found = audited(FakeRun(run.records, described), model)
    assert [one.verdict for one in found.greedy] == ["lossy"]
    assert not found.has_bug


@pytest.mark.parametrize("is_recheck", [False, True])
def test_a_tie_of_two_tokens_is_numerics(is_recheck: bool) -> None:
    llama = random_llama(layers=2)
    target = Target(llama)
    answer = decode(target, Plain(), Request(PROMPTS[0], BUDGET)).token_ids
    position = next(i for i, token in enumerate(answer) if i > 3 and token < 49)
    twin = 49
    with torch.no_grad():
        head = llama.lm_head.weight
        head[twin] = head[answer[position]] * (1 + 1e-9)
    model = ToyModel(target, {"pld": Copier()})
    key = RecordKey("vanilla", 0.0, "gsm8k", "0", 0, 0)
    lengths = (1,) * (BUDGET - 1)
    base = Record(key, "ok", 5, answer, "", "budget", 0.1, 0.1, lengths, lengths)
    other = (*answer[:position], twin, *answer[position + 1 :])
    own = replace(base, key=replace(key, method="pld"), token_ids=other)
    run = FakeRun([base, own], header(["vanilla", "pld"], ("gsm8k",)))
    (one,) = audited(run, model, is_recheck=is_recheck).greedy
    (difference,) = one.differences
    assert (one.verdict, difference.divergence.position) == ("numerics", position)
    assert difference.gap == pytest.approx(0, abs=1e-6)
    assert difference.is_same_again is (True if is_recheck else None)


def test_an_answer_that_stops_early_is_a_bug_whatever_the_logits(target: Target) -> None:
    model = ToyModel(target, {"pld": Copier()})
    run = made(model, target, {"pld": Copier()}, 0.0)
    records = [
        replace(r, token_ids=r.token_ids[:-2]) if r.key.method == "pld" else r for r in run.records
    ]
    (one,) = audited(FakeRun(records, run.header), model).greedy
    assert one.verdict == "bug"
    assert one.differences[0].divergence.own_token is None


def test_without_a_difference_no_model_is_loaded(target: Target) -> None:
    methods = {"sps": Copier()}
    run = made(ToyModel(target, methods), target, methods, 0.0)

    def refuse(_: bool) -> ToyModel:
        raise AssertionError("loaded")

    found = audit(run, refuse, is_recheck=False, num_seeds=9, say=lambda _: None)
    assert [one.verdict for one in found.greedy] == ["identical"]


def test_a_run_of_vanilla_alone_has_nothing_to_audit(target: Target) -> None:
    model = ToyModel(target, {})
    with pytest.raises(UserError, match="nothing to audit"):
        audited(made(model, target, {}, 0.0), model)


def test_sampled_draws_tell_a_broken_rule_from_a_sound_one(target: Target) -> None:
    methods = {"pld": Broken(), "sps": Copier()}
    model = ToyModel(target, methods)
    found = audited(made(model, target, methods, 1.0), model)
    verdicts = {one.method: one.verdict for one in found.sampled}
    assert verdicts == {"pld": "bug", "sps": "no difference"}
    assert (found.sampled[0].num_contexts, found.sampled[0].num_draws) == (4, 60)


def agreement(*pairs: tuple[Record, Record], history: str = "shared") -> Agreement:
    return find_agreements(make_table([r for pair in pairs for r in pair]), history)["pld"]


def test_the_first_difference_is_where_the_tokens_part() -> None:
    base, own = record(token_ids=[1, 2, 3, 4]), record("pld", token_ids=[1, 2, 9, 4])
    (found,) = agreement((base, own)).divergences
    assert (found.position, found.baseline_token, found.own_token) == (2, 3, 9)


def test_turns_after_a_difference_are_left_out_if_each_method_has_its_own_history() -> None:
    first = record(token_ids=[1, 2, 3, 4]), record("pld", token_ids=[1, 2, 3, 9])
    second = record(turn=1, token_ids=[5, 5, 5, 5]), record("pld", turn=1, token_ids=[6, 6, 6, 6])
    assert agreement(first, second).num_compared == 2
    assert agreement(first, second, history="own").num_compared == 1


def draws(generator: np.random.Generator, shares: Sequence[float], number: int) -> IntArray:
    return generator.choice(len(shares), size=(number, 2), p=shares)


def test_equal_samplers_differ_no_more_often_than_the_level() -> None:
    generator, shares = np.random.default_rng(5), [0.5, 0.3, 0.1, 0.06, 0.03, 0.01]
    values = [
        permutation_test(
            [TwoSamples(draws(generator, shares, 40), draws(generator, shares, 40))], seed
        )
        for seed in range(200)
    ]
    assert np.mean(np.array(values) < 0.05) <= 0.09
    assert 0.4 <= np.mean(values) <= 0.62


def test_different_samplers_are_told_apart_with_small_counts_too() -> None:
    generator = np.random.default_rng(6)
    one = draws(generator, [0.7, 0.2, 0.1], 60)
    other = draws(generator, [0.3, 0.5, 0.2], 60)
    assert permutation_test([TwoSamples(one, other)]) < 0.001


def test_draws_that_are_all_alike_are_no_difference() -> None:
    same = np.zeros((20, 3), dtype=int)
    assert permutation_test([TwoSamples(same, same)]) == 1.0


def test_holms_correction_matches_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_near_ties_are_wider_in_coarser_numbers() -> None:
    assert near_tie("float32", 20) < near_tie("float16", 20) < near_tie("bfloat16", 20)
    assert near_tie("bfloat16", 20) == pytest.approx(1.25)
