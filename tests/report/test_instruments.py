"""The notes on what measured a run: the memory's bandwidth and the energy."""

from typing import Any

import pytest

from specbench.report.build import make_report
from specbench.report.step_costs import step_costs
from tests.analysis.run_factory import make_run, record

ROOFLINE = {"bandwidth_bytes_per_s": 3.1e12, "target_bytes": 2 * 10**10, "block_bytes": 5 * 10**8}
COPIES = {"copy_bytes_per_s": 2.97e12, "nominal_bytes_per_s": 3.35e12}
READS_TEXT = (
    "3.1 TB/s measured by reads of 500 MB; 2.97 TB/s by copies; 3.35 TB/s nominal, from clock and "
    "bus width."
)


def note(key: str, header: dict[str, Any]) -> str:
    """The note with this key in the report on a run of two methods."""
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


def test_a_report_says_how_energy_was_measured_and_why_it_is_missing() -> None:
    metered = {"duration_s": 6.3, "tick_j": 40.0, "idle_w": 71.5, "meters": ["GPU 0"]}
    still = "the counter stood still: GPU 0"
    energies = [
        {"method": "vanilla", "temperature": 0.0, "joules_per_token": 3.7, **metered},
        {"method": "pld", "temperature": 0.0, "absent": still},
    ]
    assert note("energy", {"energy": energies}) == (
        "J per token were measured with each method alone, for 6.3 s or more, by the counter of "
        f"GPU 0, in ticks of 40 J, idle power 71.5 W, not measured: {still} (pld)."
    )
    assert note("energy", {"energy": energies[1:]}) == f"not measured: {still} (pld)."
    assert note("energy", {}) == ""


def test_a_report_shows_the_energy_of_methods_measured_alone() -> None:
    energies = [
        {"method": method, "temperature": 0.0, "joules_per_token": joules, "num_tokens": 9}
        for method, joules in {"vanilla": 3.71, "pld": 2.46}.items()
    ]
    records = [record(method, decode_s=0.4) for method in ("vanilla", "pld")]
    report = make_report(make_run(records, {"energy": energies}))
    table = step_costs(report, report.blocks[0])
    joules = [column.title for column in table.columns].index("J per token")
    assert [row.cells[joules].text for row in table.rows] == ["3.71", "2.46"]
