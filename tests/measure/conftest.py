import pytest

from specbench.machine import environment
from tests.support.headers import make_header


@pytest.fixture(autouse=True)
def _one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs and workers have the same quiet machine, since describing a real one takes long."""
    machine = make_header().environment
    monkeypatch.setattr(environment, "capture", lambda: machine)
    monkeypatch.setattr(environment, "busy_warning", lambda: None)
