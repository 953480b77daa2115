"""The progress of an audit: the part that begins, the number of parts, and the time left."""

import pytest

from specbench.audit import parts as audit_parts
from specbench.audit.parts import Parts
from specbench.measure import progress


def test_each_part_is_reported_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 30.0, 50.0])
    for module in (audit_parts, progress):
        monkeypatch.setattr(module, "perf_counter", seconds.__next__)
    said: list[str] = []
    parts = Parts(3, said.append)
    for text in ("T=0: vanilla", "T=0: pld", "T=1: vanilla"):
        parts.begin(text)
    assert said == [
        "1 of 3: T=0: vanilla …",
        "2 of 3: T=0: pld … (0:01:00 left)",
        "3 of 3: T=1: vanilla … (0:00:25 left)",
    ]
