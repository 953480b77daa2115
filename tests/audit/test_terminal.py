"""Sentences below the tables of an audit."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specbench.audit.results import Audit
from specbench.audit.terminal import print_audit, print_contract
from specbench.log.audit import AuditTest, MethodAudit
from tests.analysis.run_factory import header, make_run


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
    tests = tuple(AuditTest("logits", one, 9, 0.0, "", limit=1.0) for one in {"deviation", name})
    method = MethodAudit("pld", 0.0, 0.0, num_answers=1, tests=tests)
    shown = Console(file=io.StringIO(), width=200)
    info = make_run([], header(("vanilla", "pld"), ("gsm8k",))).header
    print_audit(Audit("run", dtype, again, (), (method,)), info, shown)
    said = shown.file.getvalue()  # type: ignore[attr-defined]
    assert ("--dtype float32 finds them" in " ".join(said.split())) == is_told


def test_failed_tests_of_a_method_are_lines_with_the_message_below() -> None:
    failed = AuditTest("answers", "greedy", 4, 2.0, "wrong answers", limit=0.0, is_failed=True)
    passed = AuditTest("answers", "budget", 4, 0.0, "wrong answers", limit=0.0)
    fault = "recall: KeyError: 'x' (my_idea.py:21 in propose)\nsampled: ValueError: 1; 2"
    result = MethodAudit("my_idea", 0.0, 0.0, tests=(failed, passed), status="bug", fault=fault)
    shown = Console(file=io.StringIO(), width=80)
    print_contract(result, shown, is_full=False)
    assert [line.rstrip() for line in shown.file.getvalue().splitlines()] == [  # type: ignore[attr-defined]
        "FAILED  recall",
        "        KeyError: 'x' (my_idea.py:21 in propose)",
        "FAILED  sampled",
        "        ValueError: 1; 2",
        "FAILED  answers: greedy",
        "        2 wrong answers in 4 (<= 0)",
        "FAILED: 3 of 4 tests of my_idea.",
    ]
