"""A Ray cluster: an actor for each worker, placed, restarted and logged by Ray.

The only module that talks to Ray from the driver's side. Must not know models or records.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from specbench.errors import SpecbenchError, TooLarge, UserError, reason_of
from specbench.machine.environment import VARIABLES
from specbench.measure.cluster.cluster import (
    Event,
    Finished,
    Job,
    Lost,
    Opening,
    Ready,
    SetupReport,
    WorkerState,
)
from specbench.measure.cluster.demand import Demand, demand_of, with_more_gpus
from specbench.measure.cluster.ray_worker import RayWorker, Restarted
from specbench.measure.spec import RunSpec

REACH_S, PLACE_S, CLOSE_S = 10.0, 60.0, 30.0
"""Seconds to reach a cluster, to place its workers, and to ask them for their last state."""
MOST_RESTARTS = 3
"""Restarts of a worker by Ray, each where there is room."""
_OWN_VARIABLES = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
"""Variables that belong to a machine or to Ray's choice of a GPU."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an actor that is under way."""

    kind: Literal["open", "complete"]
    worker: str
    actor: Any


class RayCluster:
    """The workers of runs in the cluster at an address, one run at a time.

    Use it as a context manager. `address` is "local" for this machine, "auto" for the cluster that
    runs on it, else that of a cluster's head, such as "10.0.0.1:6379".

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._actors: list[Any] = []
        self._names: dict[Any, str] = {}
        self._calls: dict[Any, _Call] = {}
        self._num_named = self._num_placed = 0

    def __enter__(self) -> Self:
        self._ray = _import_ray()
        _check_reachable(self._address)
        handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._ray.init(
                address=self._address,
                include_dashboard=False if self._address == "local" else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray has no class for it
            raise _unreachable(self._address, reason_of(error)) from error
        finally:
            for one, handler in handlers.items():  # Ray's own would end the process
                signal.signal(one, handler)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ray.shutdown()

    def start(self, spec: RunSpec, *, is_offline: bool) -> Sequence[SetupReport]:
        self._stop()
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        demand = demand_of(spec.device, nodes, self._address)
        while True:
            try:
                return self._start(spec, demand, is_offline=is_offline)
            except TooLarge as error:
                self._stop()
                demand = with_more_gpus(demand, nodes, error)

    def _start(self, spec: RunSpec, demand: Demand, *, is_offline: bool) -> Sequence[SetupReport]:
        """Start workers with this demand.

        Raises:
            TooLarge: the model does not fit there.
        """
        kind = self._ray.remote(RayWorker).options(
            max_restarts=MOST_RESTARTS, **{f"num_{demand.resource.lower()}s": demand.amount}
        )
        variables = {name: os.environ.get(name) for name in {*VARIABLES} - _OWN_VARIABLES}
        self._actors = [
            kind.remote(spec, is_offline=is_offline, variables=variables)
            for _ in range(demand.number)
        ]
        places = {actor.place.remote(): actor for actor in self._actors}
        placed, _ = self._ray.wait([*places], num_returns=len(places), timeout=PLACE_S)
        if not placed:
            raise UserError(
                f"A worker needs {demand.amount} {demand.resource}, and none of the cluster's "
                f"{demand.amount * demand.number} came free within {PLACE_S:.0f} s.",
                "See `ray status`: other jobs use the cluster.",
            )
        self._num_placed = len(placed)
        reports = [(places[ref].report.remote(), ref) for ref in placed]
        return [self._report(report, place) for report, place in reports]

    def open(self, opening: Opening, *, num_before: int) -> int:
        self._num_named = num_before
        for actor in self._actors:
            self._open(actor, opening)
        self._opening = opening
        return self._num_placed

    def submit(self, worker: str, job: Job) -> None:
        actor = next(one for one, name in self._names.items() if name == worker)
        self._calls[actor.complete.remote(job)] = _Call("complete", worker, actor)

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        if not self._calls:
            return None
        done, _ = self._ray.wait([*self._calls], num_returns=1, timeout=timeout_s)
        if not done:
            return None
        call = self._calls.pop(done[0])
        try:
            result = self._ray.get(done[0])
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Restarted):
                return self._lost(call, str(error.cause))
            if isinstance(error.cause, SpecbenchError):
                return Lost(call.worker, error.cause.message, error.cause)
            raise
        except self._ray.exceptions.RayActorError as error:
            return self._lost(call, reason_of(error))
        if call.kind == "complete":
            return Finished(call.worker, result)
        self._names[call.actor] = call.worker
        return Ready(call.worker, result)

    def close(self) -> dict[str, WorkerState]:
        idle = set(self._names.values()) - {call.worker for call in self._calls.values()}
        last = {actor.close.remote(): name for actor, name in self._names.items() if name in idle}
        told, _ = (
            self._ray.wait([*last], num_returns=len(last), timeout=CLOSE_S) if last else ((), ())
        )
        states: dict[str, WorkerState] = {}
        for ref in told:
            try:
                states[last[ref]] = self._ray.get(ref)
            except self._ray.exceptions.RayError:  # it died meanwhile: the run is done
                continue
        self._stop()
        return states

    def _report(self, report: Any, place: Any) -> SetupReport:
        """The report of a worker, or its error with the address of its machine."""
        address = "an unknown machine"
        try:
            address = self._ray.get(place).address
            return self._ray.get(report)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SpecbenchError):
                raise error.cause.at(address) from error
            raise UserError(f"A worker on {address} failed: {reason_of(error)}") from error
        except self._ray.exceptions.RayActorError as error:
            raise UserError(
                f"A worker on {address} could not start: {reason_of(error)}",
                "Install specbench there; `ray logs` has the reason.",
            ) from error

    def _open(self, actor: Any, opening: Opening) -> None:
        """Begin to open a worker under the next name, if need be after Ray has restarted it."""
        self._num_named += 1
        name = f"worker-{self._num_named}"
        ref = actor.open.options(max_task_retries=-1).remote(name, opening)
        self._calls[ref] = _Call("open", name, actor)

    def _lost(self, call: _Call, reason: str) -> Lost:
        """The event of an actor's death; if Ray restarts it, it will be ready again."""
        self._names.pop(call.actor, None)
        if call.kind == "complete":
            self._open(call.actor, self._opening)
        return Lost(call.worker, reason)

    def _stop(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors, self._names, self._calls = [], {}, {}


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "--ray needs Ray, which is not installed.", 'Install it: pip install "specbench[ray]".'
        ) from error
    return ray


def _check_reachable(address: str) -> None:
    """Refuse an address at which nothing answers: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        if address in ("local", "auto"):
            return
        raise UserError(
            f"--ray {address} is not an address.",
            "Give local, auto or HOST:PORT, as `ray start` says.",
        )
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or reason_of(error)) from error
    except (ValueError, OverflowError) as error:
        raise _unreachable(address, reason_of(error)) from error


def _unreachable(address: str, reason: str) -> UserError:
    where = (
        "No Ray cluster runs on this machine"
        if address == "auto"
        else (f"The Ray cluster at {address} cannot be reached")
    )
    return UserError(
        f"{where}: {reason.rstrip('.')}.",
        "Start it with `ray start --head`, give its address (--ray HOST:PORT), or use --ray local.",
    )
