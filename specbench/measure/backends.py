"""The choice of a run's backend, whose module is loaded only when it is used."""

from specbench.measure.base import Setup
from specbench.measure.spec import RunSpec


def make_setup(spec: RunSpec, *, is_offline: bool = False) -> Setup:
    """Find and check what the spec's backend needs: the engine in this process, or servers.

    Raises:
        UserError: an unknown name, a wrong value, or a missing or broken file.
    """
    if spec.serving_engine:
        from specbench.measure.server.started import make_started_setup

        return make_started_setup(spec, is_offline=is_offline)
    if spec.backend == "server":
        from specbench.measure.server.setup import make_server_setup

        return make_server_setup(spec, is_offline=is_offline)
    from specbench.measure.local.engine_setup import make_engine_setup

    return make_engine_setup(spec, is_offline=is_offline)
