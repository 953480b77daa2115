"""Judge the tests of an audit, by limits or by p-values that are corrected for their number."""

from collections.abc import Sequence

from msgspec.structs import replace

from specbench.analysis.stats.significance import holm
from specbench.audit.results import ALPHA
from specbench.log.audit import AuditTest, MethodAudit
from specbench.log.header import RunHeader


def corrected(results: Sequence[MethodAudit]) -> list[MethodAudit]:
    """Judge each test of these results. P-values are corrected for the total number of tests."""
    p_values = holm(  # by index of the result and index of the test in it
        {
            (index, test_index): test.p_value
            for index, method_audit in enumerate(results)
            for test_index, test in enumerate(method_audit.tests)
        }
    )
    judged_tests = [
        tuple(
            _judged(test, p_values[index, test_index])
            for test_index, test in enumerate(method_audit.tests)
        )
        for index, method_audit in enumerate(results)
    ]
    return [
        replace(method_audit, tests=tests)
        for method_audit, tests in zip(results, judged_tests, strict=True)
    ]


def _judged(test: AuditTest, p_value: float | None) -> AuditTest:
    """Judge a test by its corrected p-value, or by its limit if it has no p-value.

    A test with neither passes.
    """
    if p_value is not None:
        is_failed = p_value < ALPHA
    else:
        is_failed = test.limit is not None and not test.effect <= test.limit
    return replace(test, p_value=p_value, is_failed=is_failed)


def with_verdict(method_audit: MethodAudit, header: RunHeader) -> MethodAudit:
    """Set the status of a method's result to "bug" or "lossy" if a test failed or an error
    occurred.
    """
    if not method_audit.failures and not method_audit.fault:
        return method_audit
    is_bug = bool(method_audit.fault) or header.method(method_audit.method).is_lossless
    return replace(method_audit, status="bug" if is_bug else "lossy")
