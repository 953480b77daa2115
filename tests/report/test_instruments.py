"""The notes on what measured a run."""

from typing import Any

import pytest

from specbench.report.build import make_report
from tests.analysis.run_factory import make_run, record

ROOFLINE = {"bandwidth_bytes_per_s": 3.1e12, "target_bytes": 2 * 10**10, "block_bytes": 5 * 10**8}
COPIES = {"copy_bytes_per_s": 2.97e12, "nominal_bytes_per_s": 3.35e12}
READS_TEXT = (
    "3.1 TB/s measured by reads of 500 MB; 2.97 TB/s by copies; 3.35 TB/s by clock and bus width."
)


def note(key: str, header: dict[str, Any]) -> str:
    """The note of that key in a report on a run of two methods."""
    records = [record("vanilla", decode_s=0.4), record("pld", decode_s=0.4)]
    run = make_run(records, header)
    return next((note.text for note in make_report(run).notes if note.key == key), "")


@pytest.mark.parametrize(
    ("device", "changes", "text"),
    [
        ("cuda", COPIES, READS_TEXT),
        ("cuda", {}, "3.1 TB/s measured by copies of 500 MB. A step"),  # an older run
        ("cpu", {}, "3.1 TB/s measured by reads of 500 MB. A step"),
    ],
)
def test_a_report_says_how_the_bandwidth_was_measured(
    device: str, changes: dict[str, Any], text: str
) -> None:
    header = {"spec": {"values": {"device": device}}, "roofline": {**ROOFLINE, **changes}}
    assert note("memory", header).startswith(text)
