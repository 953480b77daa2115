"""The audit finds broken drafters, tolerates rounding and labels lossy methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from specbench.analysis.divergence import Divergence, find_agreements
from specbench.analysis.records import make_table
from specbench.audit.drafters import Plain
from specbench.audit.results import Audit, near_tie
from specbench.audit.run import audit
from specbench.audit.white_box import Effort
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.log.run import Run
from specbench.types import Record, RecordKey, Request
from tests.analysis.run_factory import header, make_run, record
from tests.judge.changing import with_header, with_records
from tests.support.cheats import Honest, under
from tests.support.faulty_rules import first_always
from tests.support.models import random_llama
from tests.support.toy_run import ToyModel

PROMPTS = [(5, 6, 7 + i, 8, 9 + i) for i in range(5)]
BUDGET = 16


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(random_llama(layers=2))


def toy(target: Target, methods: Mapping[str, Drafter]) -> ToyModel:
    return ToyModel(target, methods, PROMPTS, budget=BUDGET)


def audited(run: Run, model: ToyModel, *, is_recheck: bool = False) -> Audit:
    return model.audited(run, Effort(0), is_recheck=is_recheck)


@pytest.mark.parametrize("is_recheck", [False, True])
def test_accepting_tokens_that_the_target_rejects_is_a_bug_or_called_lossy(
    target: Target, is_recheck: bool
) -> None:
    model = toy(target, {"pld": under(Honest(), first_always), "sps": Honest()})
    run = model.run(0.0)
    checked = audited(run, model, is_recheck=is_recheck)
    statuses = {greedy.agreement.method: greedy.status for greedy in checked.greedy}
    assert statuses == {"pld": "bug", "sps": "identical"}
    assert checked.has_bug
    broken = checked.greedy[0]
    assert broken.largest_gap is not None
    assert broken.largest_gap > broken.differences[0].threshold
    assert all(difference.is_same_again in (None, False) for difference in broken.differences)
    lossy = audited(with_header(run, methods__pld__is_lossless=False), model)
    assert [greedy.status for greedy in lossy.greedy] == ["lossy", "identical"]
    assert not lossy.has_bug


def twins(factor: float) -> tuple[Run, ToyModel, int]:
    """A run, its model, and the position where the method's token is not vanilla's.

    The logit of the method's token is `factor` times the logit of vanilla's.
    """
    llama = random_llama(layers=2)
    target = Target(llama)
    answer = decode(target, Plain(), Request(PROMPTS[0], BUDGET)).token_ids
    position = next(i for i, token in enumerate(answer) if i > 3 and token < 49)
    twin = 49
    with torch.no_grad():
        head = llama.lm_head.weight
        head[twin] = head[answer[position]] * factor
    key = RecordKey("vanilla", 0.0, "gsm8k", "0", 0, 0)
    lengths = (1,) * (BUDGET - 1)
    base = Record(key, "ok", 5, answer, "", "budget", 0.1, 0.1, lengths, lengths)
    other = (*answer[:position], twin, *answer[position + 1 :])
    differing = replace(base, key=replace(key, method="pld"), token_ids=other)
    run = make_run([base, differing], header(["vanilla", "pld"], ("gsm8k",)))
    return run, toy(target, {"pld": Honest()}), position


@pytest.mark.parametrize("is_recheck", [False, True])
def test_a_tie_of_two_tokens_is_numerics(is_recheck: bool) -> None:
    run, model, position = twins(1 + 1e-9)
    (greedy,) = audited(run, model, is_recheck=is_recheck).greedy
    (difference,) = greedy.differences
    assert greedy.status == "numerics"
    assert difference.divergence.position == position
    assert difference.gap == pytest.approx(0, abs=1e-6)
    assert difference.is_same_again is (True if is_recheck else None)


@pytest.mark.parametrize(
    ("stored", "status"),
    [("", "bug"), ("int8", "bug"), ("dequantised fp8", "bug"), ("awq int4", "numerics")],
)
def test_stored_formats_that_compute_in_half_precision_are_judged_by_it(
    stored: str, status: str
) -> None:
    run, model, _ = twins(1.001)
    (greedy,) = audited(with_header(run, model__quantization=stored), model).greedy
    assert greedy.status == status


def test_an_answer_that_stops_early_is_always_a_bug(target: Target) -> None:
    model = toy(target, {"pld": Honest()})

    def shorten(answer: Record) -> Record:
        if answer.key.method == "pld":
            return replace(answer, token_ids=answer.token_ids[:-2])
        return answer

    (greedy,) = audited(with_records(model.run(0.0), shorten), model).greedy
    assert greedy.status == "bug"
    assert greedy.differences[0].divergence.own_token is None


def test_without_a_difference_no_model_is_loaded(target: Target) -> None:
    run = toy(target, {"sps": Honest()}).run(0.0)

    def refuse(_: bool) -> ToyModel:
        raise AssertionError("loaded")

    audited_run = audit(run, refuse, is_recheck=False, effort=Effort(0), say=lambda _: None)
    assert [greedy.status for greedy in audited_run.greedy] == ["identical"]


def test_a_run_of_vanilla_alone_has_nothing_to_audit(target: Target) -> None:
    model = toy(target, {})
    with pytest.raises(UserError, match="nothing to audit"):
        audited(model.run(0.0), model)


def test_turns_with_different_histories_are_not_compared() -> None:
    answers = [
        record(token_ids=[1, 2, 3, 4]),
        record("pld", token_ids=[1, 2, 9, 4]),
        record(turn=1, token_ids=[5, 5, 5, 5]),
        record("pld", turn=1, token_ids=[6, 6, 6, 6]),
    ]
    table = make_table(answers)
    agreement = find_agreements(table, "shared")["pld"]
    assert agreement.num_compared == 2
    assert agreement.divergences[0] == Divergence(
        answers[1].key,
        position=2,
        baseline_token=3,
        own_token=9,
    )
    assert find_agreements(table, "own")["pld"].num_compared == 1


@pytest.mark.parametrize("method", ["pld", "vanilla"])
@pytest.mark.parametrize("num_hidden", [1, len(PROMPTS)])
def test_answers_with_only_hidden_reasoning_are_not_compared(
    target: Target, num_hidden: int, method: str
) -> None:
    """A server that sends only text may hide all of an answer's tokens."""
    model = toy(target, {})
    records = [
        replace(
            record,
            key=replace(record.key, method=method, concurrency=1),
            token_ids=() if number < num_hidden else record.token_ids,
        )
        for number, record in enumerate(model.run(0.0).records)
    ]
    server = {"url": "http://host", "software": "", "model": "m", "protocol": "chat"}
    run = make_run(records, header([method], ("gsm8k",), servers={method: server}))
    result = audited(with_header(run, spec__values__concurrency=[1]), model)
    (greedy,) = result.greedy
    num_compared = len(PROMPTS) - num_hidden
    assert greedy.agreement.num_compared == num_compared
    assert greedy.status == ("identical" if num_compared else "no difference")
    assert bool(result.unjudged) is (num_compared == 0)


def test_near_ties_are_wider_in_coarser_numbers() -> None:
    assert near_tie("float32", 20) < near_tie("float16", 20) < near_tie("bfloat16", 20)
    assert near_tie("bfloat16", 20) == pytest.approx(1.25)
