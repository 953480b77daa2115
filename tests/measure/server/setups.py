"""Setups of engines that no test starts."""

import sys
from pathlib import Path
from typing import Any

from specbench.measure.server.started_setup import StartedSetup, make_started_setup
from specbench.measure.spec import RunSpec


def setup_of(
    *methods: str, engine: str = "vllm", program: Path | str = sys.executable, **changes: Any
) -> StartedSetup:
    """The setup of an engine's methods. The engine's executable is `program`."""
    values: dict[str, Any] = {"model": "tiny", "device": "cpu", **changes}
    spec = RunSpec(
        methods=methods,
        backend="server",
        serving_engine=engine,
        engine_command=(str(program),),
        **values,
    )
    return make_started_setup(spec, is_offline=True)
