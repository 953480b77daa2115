"""The contract of one method: all checks, judged together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from specbench.audit.white_box import corrected
from specbench.contract.checks import CHECKS, Check
from specbench.contract.subject import Subject
from specbench.errors import SpecbenchError
from specbench.log.audit import AuditTest, MethodAudit
from specbench.outside import containing


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
    verdict = "no difference"
    if faults or result.failures:
        verdict = "bug" if faults or is_lossless else "lossy"
    return replace(result, verdict=verdict, fault="; ".join(faults))
