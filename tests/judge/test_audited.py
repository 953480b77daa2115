"""The gate stops sampled output that failed its audit, and accepted tokens that rose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specbench.judge.checks import CheckedRun
from specbench.judge.comparison import MEAN
from specbench.judge.gate import check
from specbench.judge.limits import Limits
from specbench.log.audit import MethodAudit
from specbench.log.run import Run
from specbench.types import Record
from tests.analysis.run_factory import TASKS, full_run
from tests.judge.changing import with_records
from tests.support.audits import failed_audit, passed_audit, stored_audit

RUN = full_run(temperatures=(0.0, 1.0))


def audited(*results: MethodAudit) -> Run:
    return replace(RUN, audit=stored_audit(*results))


def statuses(gate: CheckedRun) -> dict[tuple[str, float], str]:
    return {
        (one.cell.method, one.cell.temperature): one.status
        for one in gate.checks
        if one.cell and one.name == "audit"
    }


@pytest.mark.parametrize("level", [1.0, 2.0])
def test_a_method_that_failed_its_audit_is_stopped(level: float) -> None:
    gate = check(audited(failed_audit("sps", 1.0, level), passed_audit("pld", 1.0)), RUN)
    (failure,) = gate.failures
    assert failure.cell
    assert (failure.cell.method, failure.cell.task, failure.name) == ("sps", MEAN, "audit")
    assert "surprise" in failure.text and "1e-09" in failure.text
    assert ("at T=2" in failure.text) is (level == 2.0)
    assert statuses(gate)["pld", 1.0] == "passed"


def test_without_an_audit_sampled_output_is_skipped_with_the_command() -> None:
    gate = check(RUN, RUN)
    assert gate.is_passed
    assert statuses(gate) == {(name, 1.0): "skipped" for name in ("pld", "sps", "lookahead")}
    assert all("specbench audit" in one.text for one in gate.checks if one.name == "audit")


def more_accepted(record: Record) -> Record:
    """The same tokens in fewer steps: every second step joins the one before."""
    lengths = record.accept_lengths
    joined = [sum(lengths[i : i + 2]) for i in range(0, len(lengths), 2)]
    return replace(record, accept_lengths=tuple(joined))


def test_a_mat_that_rose_is_stopped() -> None:
    run = with_records(RUN, lambda r: more_accepted(r) if r.key.method == "sps" else r)
    failures = [one for one in check(run, RUN).failures if one.name == "MAT"]
    assert {(one.cell.method, one.cell.task) for one in failures if one.cell} == {
        ("sps", task) for task in (*TASKS, MEAN)
    }
    assert "higher by" in failures[0].text and "audit" in failures[0].text
    assert not [
        one for one in check(RUN, run, Limits(max_mat_drop=0.9)).failures if one.name == "MAT"
    ]


def test_a_mat_may_rise_within_its_limit() -> None:
    run = with_records(RUN, lambda r: more_accepted(r) if r.key.method == "sps" else r)
    gate = check(run, RUN, Limits(max_mat_rise=0.99))
    rises = [one for one in gate.failures if one.name == "MAT"]
    assert len(rises) < 14


def test_an_audited_bug_is_stopped_although_its_few_changed_answers_are_allowed() -> None:
    """The token of a wrong child left 20 of 21 answers as they were."""
    run = full_run(("vanilla", "sps"), ("gsm8k",), num_samples=21)
    changed = with_records(
        run,
        lambda one: (
            replace(one, token_ids=(*one.token_ids[:-1], 1))
            if (one.key.method, one.key.sample_id) == ("sps", "gsm8k/3")
            else one
        ),
    )
    allowed = Limits(max_mismatch=0.1)
    assert check(changed, run, allowed).is_passed
    assert {one.name for one in check(changed, run).failures} == {"output"}
    found = replace(changed, audit=stored_audit(failed_audit("sps", 0.0, 0.0)))
    assert {one.name for one in check(found, run, allowed).failures} == {"audit"}
