"""The white-box audit finds bugs that samples of tokens do not show, and blames no sound method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from specbench.audit.evidence import watched_evidence
from specbench.audit.logit_tests import logit_tests
from specbench.audit.numbers import UNKNOWN, Array, LogitNumbers
from specbench.audit.results import EPSILON
from specbench.audit.white_box import Effort
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State
from specbench.engine.execution import Execution
from specbench.engine.kernels.native_build import BuildError, user_folder
from specbench.engine.kernels.native_ops import native_ops
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.log.audit import MethodAudit
from specbench.types import Completion, Request, Sampling
from tests.analysis.run_factory import make_run
from tests.support.bugs import BUGS, Variant
from tests.support.models import random_llama
from tests.support.noisy_target import NoisyTarget
from tests.support.toy_run import ToyModel
from tests.support.weights import build

PROMPTS = [tuple(range(3, 9 + i)) for i in range(8)]
MODEL = random_llama(layers=2)
EFFORT = Effort(num_tokens=250, num_outcomes=500)
CLEAR = ("temperature applied twice", "seed reused in every step")
"""Bugs that a few hundred tokens show. `benchmarks/audit_power.py` tries all bugs."""


def native() -> Execution:
    """Execution by the compiled layers, whose rows have the same bits in every step."""
    try:
        return Execution(native_ops(torch.bfloat16, user_folder()))
    except BuildError as reason:
        pytest.skip(str(reason))


def audited(target: Target, drafter: Drafter, *temperatures: float) -> Sequence[MethodAudit]:
    model = ToyModel(target, {"sps": drafter}, PROMPTS, budget=48)
    audit = model.audited(model.run(*temperatures), EFFORT)
    return [result for result in audit.methods if result.method == "sps"]


def planted(name: str) -> Variant:
    return next(bug for bug in BUGS if bug.name == name)


@pytest.mark.parametrize("name", CLEAR)
def test_a_bug_above_temperature_0_is_found(name: str) -> None:
    bug = planted(name)
    target = bug.target(MODEL)
    results = audited(target, bug.drafter(target), 0.5)
    assert "bug" in {result.status for result in results}


def test_a_sound_method_passes_at_every_temperature() -> None:
    target = Target(MODEL)
    results = audited(target, NoisyTarget(target), 0.0, 0.8)
    assert [(result.temperature, result.level) for result in results] == [
        (0.0, 0.0),
        (0.8, 0.8),
        (0.8, 2.0),
    ]
    assert {result.status for result in results} == {"no difference"}
    greedy, sampled, raised = results
    assert (greedy.num_same, greedy.num_replayed) == (6, 6)
    assert (sampled.num_same, sampled.num_replayed) == (6, 6)
    assert raised.num_replayed == 0
    assert {test.subject for test in greedy.tests} == {"logits"}
    assert "bits" not in {test.name for test in greedy.tests}  # torch's depend on a step's shape
    assert {test.subject for test in sampled.tests} == {"logits", "guesses", "tokens", "rule"}
    assert sampled.num_tokens >= 250
    assert sampled.smallest_tv is not None
    assert 0.02 < sampled.smallest_tv < 0.2


def test_no_draw_is_tested_twice_if_a_run_has_several_passes() -> None:
    """All passes have the same prompts, so a seed made from the prompt alone would repeat draws."""
    target = Target(MODEL)
    model = ToyModel(target, {"sps": NoisyTarget(target)}, PROMPTS[:2], budget=48)
    run = model.run(0.8)
    passes = [
        replace(record, key=replace(record.key, repeat=repeat), seed=repeat)
        for record in run.records
        for repeat in range(3)
    ]
    with patch.object(model, "watch", wraps=model.watch) as watch:
        model.audited(make_run(passes, run.header), EFFORT)
    requests = [call.args for call in watch.call_args_list]
    seeds = [
        request.seed
        for method, request in requests
        if method == "sps" and request.sampling.temperature == 2
    ]
    assert len(seeds) == len({*seeds}) == 6


def test_audits_of_runs_with_different_seeds_draw_different_answers() -> None:
    models = [
        ToyModel(Target(MODEL), {}, PROMPTS[:2], budget=48, first_seed=seed) for seed in (0, 100)
    ]
    with patch.object(ToyModel, "watch", autospec=True, side_effect=ToyModel.watch) as watch:
        for model in models:
            model.audited(model.run(0.8), EFFORT)
    assert len({call.args[2].seed for call in watch.call_args_list}) == 24


def test_equal_answers_of_several_passes_count_once_as_flips() -> None:
    target, top_1 = Target(MODEL), Sampling(1.0, top_k=1)  # so all answers to a prompt are equal
    model = ToyModel(target, {"sps": NoisyTarget(target)}, PROMPTS[:2], budget=48, sampling=top_1)
    run = model.run(0.0, 1.0)
    passes = [replace(r, key=replace(r.key, repeat=i), seed=i) for r in run.records for i in (0, 1)]
    audit = model.audited(make_run(passes, run.header), EFFORT)
    assert [result.num_replayed for result in audit.methods] == [2, 2, 4, 4, 0, 0]
    rows = {test.name: test.num for test in audit.methods[3].tests if test.subject == "logits"}
    assert rows["flips"] <= 2 * 48 < 200 < rows["deviation"]


def test_logits_are_audited_even_if_every_answer_is_vanillas() -> None:
    """If a model is sure of its tokens, wrong logits of a branch change hardly any greedy token."""
    target = planted("stale keys in one layer").target(MODEL)
    (greedy,) = audited(target, NoisyTarget(target), 0.0)
    assert "deviation" in {test.name for test in greedy.failures}


def test_bits_show_a_bug_that_rounding_hides_in_bfloat16() -> None:
    """The bug is stale keys in one layer, in answers of a few tokens."""
    execution = native()
    model = random_llama(layers=2, hidden_size=64).bfloat16()
    bug = planted("stale keys in one layer")
    targets = (Target(model, execution), bug.target(model, execution))
    sound, buggy = (audited(target, NoisyTarget(target), 0.0)[0] for target in targets)
    assert sound.status == "no difference"
    assert [test.effect for test in sound.tests if test.name == "bits"] == [0.0]
    assert "bits" in {test.name for test in buggy.failures}


@pytest.mark.parametrize("is_bug", [False, True])
def test_bits_are_compared_only_if_plain_steps_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_bug: bool
) -> None:
    """A product over other rows may round differently. This is not the method's fault.

    An error that the method makes itself is a fault.
    """
    target = Target(random_llama(layers=2, hidden_size=64).bfloat16(), native())
    pld = build("pld", target, tmp_path)
    is_decoding, forward = False, target.forward

    def rounded(tree: DraftTree) -> Forward:
        step = forward(tree)
        if tree.num_nodes == 11 and (is_decoding or not is_bug):
            step.logits.mul_(1.01)
        return step

    def decoded(*arguments: Any) -> Completion:
        nonlocal is_decoding
        is_decoding = True
        completion = decode(*arguments)
        is_decoding = False
        return completion

    monkeypatch.setattr(target, "forward", rounded)
    monkeypatch.setattr("specbench.audit.evidence.decode", decoded)
    request = Request((5, 6, 7, 8, 9) * 6, 16)
    is_exact = watched_evidence(target, pld, request).logits.is_exact
    assert 11 in decode(target, pld, request).num_nodes
    assert (is_exact == 1).any()
    assert {*is_exact.tolist()} == ({1, 0} if is_bug else {1, UNKNOWN})


def test_an_answer_without_a_step_has_no_bits_to_compare(tmp_path: Path) -> None:
    target = Target(MODEL)
    assert not target.max_exact_rows
    evidence = watched_evidence(target, build("pld", target, tmp_path), Request((5, 6, 7), 1))
    assert evidence.token_ids and not len(evidence.logits.is_exact)


@pytest.mark.parametrize(("is_exact", "is_failed"), [(1, False), (0, True)])
def test_no_method_is_blamed_for_the_engines_deviations(is_exact: int, is_failed: bool) -> None:
    """Of 2,154 sampled rows of a sound method, one deviated by 40.6 epsilons. 33.7 are allowed."""
    epsilon = EPSILON["bfloat16"]
    deviations = np.array([3.0, 40.6, 8.0]) * epsilon

    def numbers(deviation: Array, exact: Array) -> LogitNumbers:
        return LogitNumbers(deviation, np.ones(3), np.zeros(3, bool), exact, np.arange(3))

    vanilla = numbers(np.ones(3) * epsilon, np.ones(3, int))
    method = numbers(deviations, np.array([1, is_exact, 1]))
    tests = {test.name: test for test in logit_tests(method, "bfloat16", 33.7, vanilla)}
    assert tests["deviation"].effect == pytest.approx(40.6)
    limits = {name: tests[name].limit for name in ("deviation", "bits")}
    exceeded = [name for name, limit in limits.items() if tests[name].effect > (limit or 0.0)]
    assert exceeded == (["deviation", "bits"] if is_failed else [])
    (bits_test,) = logit_tests(numbers(deviations, np.ones(3, int)), "bfloat16", 33.7)  # vanilla's
    assert bits_test.limit == 33.7


class Failing(Drafter):
    def propose(self, state: State) -> DraftTree:
        if state.sampler.sampling.temperature > 1:
            raise KeyError("hot")
        return state.chain()


def test_a_method_that_fails_in_the_audit_is_named_with_its_reason() -> None:
    results = audited(Target(MODEL), Failing(), 1.0)
    assert [result.status for result in results] == ["no difference", "bug"]
    assert "KeyError: 'hot'" in results[1].fault


def test_enough_tokens_are_drawn_for_the_requested_power() -> None:
    target = Target(MODEL)
    model = ToyModel(target, {"sps": NoisyTarget(target)}, PROMPTS, budget=48)
    audit = model.audited(model.run(1.0), Effort(50, power=0.12, num_outcomes=500))
    for result in audit.methods:
        assert result.smallest_tv is not None
        assert 0.06 < result.smallest_tv <= 0.12


def test_an_answer_that_is_not_reproduced_is_tested_as_recorded() -> None:
    target = Target(MODEL)
    model = ToyModel(target, {"sps": NoisyTarget(target)}, PROMPTS, budget=48)
    run = model.run(1.0)
    spoiled = [
        replace(record, token_ids=(7, *record.token_ids[1:]))
        if record.key.method == "sps"
        else record
        for record in run.records
    ]
    audit = model.audited(replace(run, records=tuple(spoiled)), EFFORT)
    tampered = next(
        result for result in audit.methods if result.method == "sps" and not result.is_raised
    )
    assert tampered.num_same == 0 < tampered.num_replayed
    assert tampered.status == "bug"
    assert {test.subject for test in tampered.failures} == {"tokens"}
