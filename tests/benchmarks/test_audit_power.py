"""The short form of benchmarks/audit_power.py, on a small random model."""

import pytest

from benchmarks import audit_power
from benchmarks.audit_power import Ended, Summary
from benchmarks.planting import audit_bug, audit_real, audit_sound, random_ground
from specbench.audit import contract as checks
from specbench.audit.white_box import Effort
from tests.support.bugs import BUGS, SMALL, SOUND
from tests.support.paths import ROOT
from tests.support.texts import assert_in


def test_a_planted_bug_is_found_without_false_alarms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "NUM_TOKENS", dict.fromkeys(checks.NUM_TOKENS, 150))
    monkeypatch.setattr(checks, "NUM_OUTCOMES", 500)
    ground = random_ground(("pld", "medusa"), layers=2)
    bug = next(bug for bug in BUGS if bug.name == "stale keys in one layer")
    figures = audit_bug(bug, ground, Effort(num_tokens=150, num_outcomes=1500))
    assert (figures["contract"], figures["audit"]) == (True, True)
    assert figures["by"]
    monkeypatch.setattr(checks, "NUM_TOKENS", dict.fromkeys(checks.NUM_TOKENS, 50))
    sound = audit_sound(SOUND[1], ground, Effort(num_tokens=60, num_outcomes=500))
    assert sound == {"contract": [], "audit": []}
    real = audit_real(ground, [3], Effort(num_tokens=40, num_outcomes=200))
    assert real == {"audits": 2, "alarms": []}


def ended(part: str, **figures: object) -> Ended:
    return Ended(part, 2.0, figures)


def test_missed_bugs_and_more_than_two_alarms_are_counted() -> None:
    good = {"contract": True, "audit": True, "answers": 40}
    parts = [
        ended("bug: a", **good),
        ended("bug: b", **{**good, "audit": None}),
        ended("sound: s", contract=["x"], audit=[]),
        ended("tiny: 0", audits=55, alarms=["pld, seed 3"]),
        ended("random: 0", audits=30, alarms=[]),
    ]
    summary = Summary({part.part: part for part in parts})
    assert summary.is_passed
    assert (summary.num_audits, summary.most_answers, summary.alarms) == (
        85,
        40,
        ["s: x", "pld, seed 3"],
    )
    assert "10 s of CPU time" in [*summary.lines()]
    for part, change in (
        ("bug: a", {"contract": False}),
        ("bug: a", {"audit": False}),
        ("bug: a", {"answers": 201}),
        ("random: 0", {"alarms": ["one more"]}),
    ):
        other = {part.part: part for part in parts}
        other[part] = ended(part, **{**other[part].figures, **change})
        assert not Summary(other).is_passed


def test_the_documented_numbers_and_efforts_are_the_catalogues() -> None:
    text = " ".join((ROOT / "docs/methodology.md").read_text(encoding="utf-8").split())
    for bug in (*BUGS, *SMALL):
        if bug.effort:
            unit = "answers" if bug.check == "ends" else "outcomes"
            assert f"| {bug.name} | {bug.effort:,} {unit}" in text
    assert_in(
        text,
        f"plants {len(BUGS)} bugs",
        f"{len(SOUND)} correct variants and {audit_power.NUM_SEEDS} audited runs",
    )
