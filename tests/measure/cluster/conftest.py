from __future__ import annotations

import pytest

from specbench.machine import environment
from tests.support.headers import make_header


@pytest.fixture(autouse=True)
def _one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same quiet machine for the driver and all workers."""
    monkeypatch.setattr(environment, "capture", lambda: make_header().environment)
    monkeypatch.setattr(environment, "busy_warning", lambda: None)
