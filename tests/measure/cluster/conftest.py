from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specbench.machine import environment
from tests.support.backend import answering
from tests.support.cluster import FakeRay, use_ray
from tests.support.headers import make_header


@pytest.fixture(autouse=True)
def _one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same quiet machine for the driver and all workers."""
    monkeypatch.setattr(environment, "capture", lambda: make_header().environment)
    monkeypatch.setattr(environment, "busy_warning", lambda: None)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRay]:
    """Use a Ray with these options."""
    methods = {"vanilla": answering(1), "pld": answering(2), "sps": answering(3)}

    def use(**options: Any) -> FakeRay:
        return use_ray(monkeypatch, FakeRay(methods, **options))

    return use
