"""A Ray cluster: an actor for each worker, placed, restarted and logged by Ray."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Self

from specbench.errors import SpecbenchError, TooLarge, UserError, reason_of
from specbench.machine.environment import VARIABLES
from specbench.measure.cluster.worker import OWN_VARIABLES, RemoteSetup, Worker
from specbench.measure.spec import RunSpec

REACH_S, PLACE_S = 10.0, 60.0
"""Seconds to reach a cluster, and to place its workers."""
MOST_RESTARTS = 3
"""Restarts of a worker by Ray, each where there is room."""


def _local_variables() -> dict[str, str]:
    """Ray's variables on this machine alone.

    Workers are as nice as this process, not 15 nicer. Ray's ports are open to the network, so
    that only who knows this run's token may use them (Ray 2.52 or newer).
    """
    token = secrets.token_hex(32)
    return {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


class WorkerLost(SpecbenchError):
    """A worker whose process or machine is gone."""


class RayCluster:
    """The workers of runs in the cluster at an address, one run at a time.

    Use it as a context manager. `address` is "local" for this machine, "auto" for the cluster
    that runs on it, else that of a cluster's head, such as "10.0.0.1:6379". `actors` are the
    workers.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.ray: Any = None
        self.actors: list[Any] = []

    def __enter__(self) -> Self:
        handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
        if self._address == "local" and "ray" not in sys.modules:  # it reads them when imported
            for name, value in _local_variables().items():
                os.environ.setdefault(name, value)
        try:
            import ray

            _knock(self._address)
            ray.init(
                address=self._address,
                include_dashboard=False if self._address == "local" else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except ImportError as error:
            text = "--ray needs Ray, which is not installed."
            raise UserError(text, 'Install it: pip install "ray[default]>=2.40".') from error
        except Exception as error:  # Ray has no class for it
            where = f"The Ray cluster at {self._address} cannot be reached"
            fix = "Start it with `ray start --head`, give its address (--ray HOST:PORT), or use "
            fix += "--ray local."
            if self._address == "auto":
                where = "No Ray cluster runs on this machine"
            elif self._address == "local":  # its limit is no option
                where = "Ray did not start on this machine"
                fix = "Try again when the machine is less busy: Ray ends if its processes are not "
                fix += "up after 15 s. /tmp/ray/session_latest/logs has the reason."
            raise UserError(f"{where}: {reason_of(error).rstrip('.')}.", fix) from error
        finally:
            for one, handler in handlers.items():  # Ray's own would end the process
                signal.signal(one, handler)
        self.ray = ray
        return self

    def __exit__(self, *exception: object) -> None:
        self.ray.shutdown()

    def start(self, spec: RunSpec, *, is_offline: bool) -> Sequence[RemoteSetup]:
        """Start a run's workers, each with its setup, in place of those of the last run.

        Raises:
            UserError: no worker can be started, or one has not what the run needs.
        """
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        demand_for = partial(demand_of, spec.device, nodes, self._address)
        demand = demand_for()
        while True:
            self.stop()
            try:
                return self._start(spec, demand, is_offline=is_offline)
            except TooLarge as error:  # an estimate may be too low
                if error.num_gpus_needed:
                    error.num_gpus_needed = max(error.num_gpus_needed, demand.amount + 1)
                demand = demand_for(error)

    def _start(self, spec: RunSpec, demand: Demand, *, is_offline: bool) -> Sequence[RemoteSetup]:
        """Start workers with this demand.

        Raises:
            TooLarge: the model does not fit there.
        """
        kind = self.ray.remote(Worker).options(
            max_restarts=MOST_RESTARTS, **{f"num_{demand.resource.lower()}s": demand.amount}
        )
        shared = {*VARIABLES} - OWN_VARIABLES
        variables = {name: value for name, value in os.environ.items() if name in shared}
        self.actors = [
            kind.remote(spec, is_offline=is_offline, variables=variables)
            for _ in range(demand.number)
        ]
        places = {actor.address.remote(): actor for actor in self.actors}
        placed = self.wait(places, PLACE_S, number=len(places))
        if not placed:
            raise UserError(
                f"A worker needs {demand.amount} {demand.resource}, and none of the cluster's "
                f"{demand.amount * demand.number} came free within {PLACE_S:.0f} s.",
                "See `ray status`: other jobs use the cluster.",
            )
        self.stop({*places.values()} - {places[ref] for ref in placed})
        self.actors = [places[ref] for ref in placed]
        try:
            return [self.get(ref) for ref in [actor.report.remote() for actor in self.actors]]
        except WorkerLost as error:
            raise UserError(
                f"A worker could not start: {error.message}",
                "Install specbench on every machine; `ray logs` has the reason.",
            ) from error

    def wait(self, refs: Collection[Any], timeout_s: float | None, number: int = 1) -> list[Any]:
        """The calls that have ended, once `number` have; fewer after the timeout."""
        if not refs:
            return []
        done, _ = self.ray.wait([*refs], num_returns=number, timeout=timeout_s)
        return list(done)

    def get(self, ref: Any) -> Any:
        """The result of a call.

        Raises:
            WorkerLost: the worker is gone. Ray may start it again.
            Exception: what the worker raised.
        """
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self.ray.exceptions.RayActorError as error:
            raise WorkerLost(reason_of(error)) from error

    def stop(self, actors: Collection[Any] | None = None) -> None:
        """Stop these workers, or all."""
        for actor in self.actors if actors is None else actors:
            self.ray.kill(actor)
        self.actors = [] if actors is None else self.actors


class Demand(NamedTuple):
    """The resources of one worker, and the number of workers that the cluster can hold."""

    resource: Literal["GPU", "CPU"]
    amount: int
    number: int


def demand_of(
    device: str, nodes: Sequence[dict[str, float]], address: str, too_large: TooLarge | None = None
) -> Demand:
    """The demand of workers for `--device` on nodes with these resources.

    A worker has a GPU, or several on one node for a model that is too large for fewer. On a
    CPU it has all cores of the smallest node, so that none disturbs another.

    Raises:
        TooLarge: no node has enough GPUs, or the model is too large for a CPU.
        UserError: the device has a number, or the cluster has no GPU or CPU for a worker.
    """
    if ":" in device:
        raise UserError(
            f"--device {device} names GPUs, and Ray chooses those of its workers.",
            "Give --device cuda, or leave it out.",
        )
    has_gpus = device == "cuda" or (device != "cpu" and any(node.get("GPU") for node in nodes))
    resource: Literal["GPU", "CPU"] = "GPU" if has_gpus else "CPU"
    counts = [int(node.get(resource, 0)) for node in nodes]
    amount = 1 if has_gpus else min(filter(None, counts), default=1)
    amount = too_large.num_gpus_needed if too_large else amount
    number = sum(count // amount for count in counts) if amount else 0
    if number:
        return Demand(resource, amount, number)
    if too_large:
        has = f" The largest machine of the cluster has {max(counts)}." if amount else ""
        raise TooLarge(too_large.message + has, too_large.hint, num_gpus_needed=amount)
    raise UserError(
        f"A worker needs 1 {resource}, and the cluster at {address} has 0.",
        f"Start its machines with `ray start --num-{resource.lower()}s N`, or choose a --device.",
    )


def _knock(address: str) -> None:
    """Raise OSError or ValueError if nothing answers: Ray itself would try for minutes."""
    if address in ("local", "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        raise ValueError("it is not an address")
    socket.create_connection((host, int(port)), timeout=REACH_S).close()
