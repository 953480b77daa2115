"""Backends: whatever completes requests and says what it is. A module is loaded when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.measure.base import Setup
    from specbench.measure.spec import RunSpec

SETUPS = {
    "": "local.engine_setup.make_engine_setup",
    "server": "server.setup.make_server_setup",
}
"""Value of `--backend` -> the function that makes its setup; the engine is in this process."""
STARTED_SETUP = "server.setup.make_started_setup"
"""The function that makes the setup of servers that `--engine` starts."""


def make_setup(spec: RunSpec, *, is_offline: bool = False) -> Setup:
    """Find and check what the spec's backend needs.

    Raises:
        UserError: an unknown name, a wrong value, or a missing or broken file.
    """
    path = STARTED_SETUP if spec.serving_engine else SETUPS[spec.backend]
    module, _, name = path.rpartition(".")
    setup: Setup = getattr(import_module(f"specbench.measure.{module}"), name)(
        spec, is_offline=is_offline
    )
    return setup
