"""The contract of one method: all checks, judged together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from specbench.audit.contract_checks import CHECKS, Check
from specbench.audit.results import ALPHA
from specbench.audit.subject import Subject
from specbench.audit.token_tests import smallest_tv
from specbench.audit.white_box import corrected
from specbench.errors import SpecbenchError, containing
from specbench.log.audit import AuditStatus, AuditTest, MethodAudit


def run_contract(
    name: str,
    subject: Subject,
    *,
    checks: Sequence[Check] = CHECKS,
    is_lossless: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> MethodAudit:
    """The result of the checks of a method. What the method raises ends a check and fails it."""
    tests: list[AuditTest] = []
    faults = []
    for check in checks:
        say(f"{name}: {(check.__doc__ or '').partition(':')[0].lower()} …")
        try:
            with containing(f"{check.__name__}"):
                tests += check(subject)
        except SpecbenchError as error:
            faults.append(error.message)
    (result,) = corrected([MethodAudit(name, 0.0, 0.0, tests=tuple(tests))])
    status: AuditStatus = "no difference"
    if faults or result.failures:
        status = "bug" if faults or not _is_allowed(result, is_lossless) else "lossy"
    found = subject.sampled
    num_tests = sum(test.p_value is not None for test in tests)
    return replace(
        result,
        status=status,
        fault="; ".join(faults),
        num_tokens=len(found) if found else 0,
        smallest_tv=smallest_tv(found, ALPHA / num_tests) if found else None,
    )


def _is_allowed(result: MethodAudit, is_lossless: bool) -> bool:
    """A method that does not claim to be lossless may only fail as a sampler."""
    return not is_lossless and {test.subject for test in result.failures} <= {"tokens", "rule"}
