"""Reports show the stored audit."""

from dataclasses import replace

from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.report.notes import notes
from tests.analysis.run_factory import full_run
from tests.support.audits import failed_audit, passed_audit, stored_audit

MEASURED = measure(full_run(temperatures=(1.0,), tasks=("gsm8k",)), Bootstrap(50))


def test_a_passed_audit_says_what_it_would_have_found() -> None:
    audit = structs.replace(stored_audit(passed_audit("sps", 1.0)), records_sha256="ab")
    run = replace(MEASURED, audit=audit)
    (note,) = [one for one in notes([run], ["run"]) if one.label == "Audit"]
    assert note.text == (
        "no bug found on 2026-11-21 (float32); a total variation of 0.040 would have been found."
    )


def test_a_failed_audit_is_a_warning_with_the_test() -> None:
    run = replace(MEASURED, audit=stored_audit(failed_audit("sps", 1.0, 2.0)))
    found = notes([run], ["run"])
    assert any(one.label == "Audit" and "1 method failed" in one.text for one in found)
    (warning,) = [one.text for one in found if one.is_warning and "audit" in one.text]
    assert warning.startswith(
        "SpS failed the audit at T=2: tokens, surprise: -0.2 nats (p = 1e-09)"
    )
