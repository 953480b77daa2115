"""Sentences below the tables of an audit."""

from __future__ import annotations

from functools import partial

import pytest

from specbench.audit.results import PLANTED, Audit, is_idle
from specbench.audit.terminal import print_audit, print_contract
from specbench.log.audit import AuditTest, MethodAudit, find_unjudged
from tests.analysis.run_factory import header, make_run
from tests.support.audits import passed_audit, stored_audit
from tests.support.printing import printed


@pytest.mark.parametrize(
    ("dtype", "again", "name", "is_told"),
    [
        ("bfloat16", None, "deviation", True),
        ("bfloat16", "float32", "deviation", False),
        ("bfloat16", None, "bits", False),
        ("float32", None, "deviation", False),
    ],
)
def test_an_audit_in_half_precision_says_what_it_cannot_see(
    dtype: str, again: str | None, name: str, is_told: bool
) -> None:
    tests = tuple(
        AuditTest("logits", test_name, 9, 0.0, "", limit=1.0) for test_name in {"deviation", name}
    )
    method = MethodAudit("pld", 0.0, 0.0, num_answers=1, tests=tests)
    info = make_run([], header(("vanilla", "pld"), ("gsm8k",))).header
    said = printed(partial(print_audit, Audit(dtype, again, (), (method,)), info), 200)
    assert ("--dtype float32 finds them" in " ".join(said.split())) == is_told


def test_failed_tests_of_a_method_are_lines_with_the_message_below() -> None:
    failed = AuditTest("answers", "greedy", 4, 2.0, "wrong answers", limit=0.0, is_failed=True)
    passed = AuditTest("answers", "budget", 4, 0.0, "wrong answers", limit=0.0)
    fault = "recall: KeyError: 'x' (my_idea.py:21 in propose)\nsampled: ValueError: 1; 2"
    result = MethodAudit("my_idea", 0.0, 0.0, tests=(failed, passed), status="bug", fault=fault)
    shown = printed(partial(print_contract, result, is_full=False))
    assert [line.rstrip() for line in shown.splitlines()] == [
        "FAILED  recall",
        "        KeyError: 'x' (my_idea.py:21 in propose)",
        "FAILED  sampled",
        "        ValueError: 1; 2",
        "FAILED  answers: greedy",
        "        2 wrong answers in 4 (<= 0)",
        "FAILED: 3 of 4 tests of my_idea.",
        "--full shows every test.",
    ]


@pytest.mark.parametrize("smallest_tv", [None, 0.1])
def test_full_is_advised_only_if_it_was_not_used(smallest_tv: float | None) -> None:
    result = MethodAudit("x", 0.0, 0.0, num_tokens=300, smallest_tv=smallest_tv)
    for is_full in (False, True):
        shown = printed(partial(print_contract, result, is_full=is_full))
        assert ("--full shows every test." in shown) is not is_full
        assert ("Power: " in shown) is (smallest_tv is not None)


def test_methods_without_evidence_are_named() -> None:
    few = MethodAudit("pld", 1.0, 1.0, num_tokens=60, smallest_tv=0.4)
    blind = MethodAudit("sps", 0.0, 0.0)
    stored = stored_audit(passed_audit("pld", 0.0), few, blind)
    info = make_run([], header(("vanilla", "pld", "sps"), ("gsm8k",), (0.0, 1.0))).header
    unjudged = [(temperature, reason) for _, temperature, reason in find_unjudged(stored, info)]
    assert unjudged == [
        (1.0, "60 sampled tokens are too few: 240 or more are needed"),
        (0.0, "no answer to compare with vanilla's"),
        (1.0, "not in the audit"),
    ]
    audit = Audit("float32", None, (), (few,), unjudged=("PLD at T=1: too few",))
    assert "Not judged: PLD at T=1: too few." in printed(partial(print_audit, audit, info))
    assert audit.exit_code == 3
    assert Audit("float32", None, (), (passed_audit("pld", 1.0),)).exit_code == 0


def test_vanilla_is_judged_if_no_other_method_ran() -> None:
    few = MethodAudit("vanilla", 1.0, 1.0, num_tokens=60, smallest_tv=0.4)
    described = header(("vanilla", "eagle3"), ("gsm8k",), (1.0,), no_checkpoint=["eagle3"])
    (unjudged,) = find_unjudged(stored_audit(few), make_run([], described).header)
    assert "60 sampled tokens are too few" in unjudged.reason


def test_a_method_that_proposes_nothing_did_not_pass() -> None:
    for num, said in ((0, "Not judged: x proposed no draft token"), (3, "Passed: 1 tests of x")):
        result = MethodAudit("x", 0.0, 0.0, tests=(AuditTest("answers", PLANTED, num, 0.0),))
        shown = printed(partial(print_contract, result, is_full=True))
        assert f"answers: {PLANTED}" in shown and said in shown
        assert is_idle(result) is (num == 0)
