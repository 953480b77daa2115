"""Measure a server's memory and energy on this machine, and how much CPU and GPU idle servers use.

Energy is measured for whole GPUs and processor packages, so it is unknown if other programs use
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace as replace_use

from specbench.log.backend import ServerUse
from specbench.log.usage import BUSY_SHARE
from specbench.machine.cpu_sampler import read_moment, share_of_others
from specbench.machine.energy import IDLE_S, EnergyMeter, energy_meter
from specbench.machine.nvml import Card
from specbench.machine.processes import (
    cpu_seconds,
    gpu_memory_bytes,
    listening_process,
    memory_bytes,
    process_tree,
)

_LEAST_SHARE = 0.01
"""An idle server that takes less than this share of a core's time counts as resting."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
ELSEWHERE = "the server is on another machine, or its process is unknown"
_OTHERS_ON_GPU = "other programs used {}"
_OTHERS_ON_CPU = "other programs used the processor"


def local_process(url: str) -> int:
    """The process id of the server at an address, or 0 if it is unknown or on another machine."""
    address = urlsplit(url)
    is_local = address.hostname in _LOOPBACK and address.port
    return listening_process(address.port) if is_local and address.port else 0


@contextmanager
def server_meters() -> Iterator[ServerMeters]:
    """The meters of servers on this machine."""
    with energy_meter(has_gpu=True) as meter:  # it has no GPU if there is no driver
        yield ServerMeters(meter)


class ServerMeters:
    """Makes a meter for each block (requests that a server completes together), and keeps the power
    of idle servers in watts.
    """

    def __init__(self, meter: EnergyMeter) -> None:
        self._meter = meter
        # The watts while a server was idle, by the server's process id, then by counter.
        self._idle_w: dict[int, dict[str, float]] = {}

    async def of_block(self, process_ids: Mapping[str, int], method: str) -> BlockMeter:
        """The meter of a block that begins now.

        Before the first block of a server whose process is known, this waits for IDLE_S seconds to
        measure the idle power, if there are counters of energy. `process_ids` are the process ids
        of the servers on this machine, by method.
        """
        process_id = process_ids.get(method, 0)
        if process_id and process_id not in self._idle_w:
            self._idle_w[process_id] = await _idle_watts(self._meter)
        return BlockMeter(process_ids, method, self._meter, self._idle_w.get(process_id, {}))


async def _idle_watts(meter: EnergyMeter) -> dict[str, float]:
    """The watts by energy counter, measured while no request is in flight. Empty without
    counters.
    """
    joules_before, began = meter.read(), perf_counter()
    if not joules_before:
        return {}
    await asyncio.sleep(IDLE_S)
    seconds = perf_counter() - began
    return {counter: joules / seconds for counter, joules in meter.growth(joules_before).items()}


class BlockMeter:
    """Measures memory and energy of a block's server, and how much CPU and GPU the others use.

    Args:
        process_ids: process ids of the servers on this machine, by method.
        method: the method of the block.
        meter: the energy counters of this machine. `meter.cards` are the GPUs that have one.
        idle_w: watts of each counter's GPU or package while the server was idle; empty if unknown.
    """

    def __init__(
        self,
        process_ids: Mapping[str, int],
        method: str,
        meter: EnergyMeter,
        idle_w: Mapping[str, float],
    ) -> None:
        """Read all counters. The block's times and energy are their growth from now on."""
        self._process_ids = process_ids
        self._method = method
        self._meter = meter
        self._idle_w = idle_w
        self._cpu_s = self._cpu_seconds()  # CPU seconds of each server so far, by method
        self._moment = read_moment()  # CPU times of the machine and of this process
        self._joules = meter.read()  # by counter of energy
        self._began = perf_counter()
        # The time of the latest sample of each GPU ("GPU 0"), in microseconds of the driver's
        # clock.
        self._sampled_us = {
            gpu: max((sample.timeStamp for sample in _gpu_samples(card, 0)), default=0)
            for gpu, card in meter.cards.items()
        }

    def header_fields(self) -> dict[str, Any]:
        """The values of the block up to now, by the names of its header's fields."""
        return {
            "idle_cpu_s": self.idle_cpu_s(),
            "idle_gpu": self.idle_gpu(),
            "use": self.use(),
        }

    def idle_cpu_s(self) -> dict[str, float]:
        """The CPU seconds that other servers used in the block, by method. Resting servers are left
        out.
        """
        least_s = _LEAST_SHARE * (perf_counter() - self._began)
        now_s = self._cpu_seconds()
        used_s = {method: now_s[method] - before_s for method, before_s in self._cpu_s.items()}
        return {
            method: round(seconds, 3)
            for method, seconds in used_s.items()
            if self._is_other(method) and seconds >= least_s
        }

    def idle_gpu(self) -> dict[str, float]:
        """The shares of a GPU's time that servers other than the block's used, by method. Zeros are
        left out.

        A server's share is the largest in any sample since the block began, on any of the GPUs that
        have an energy counter.
        """
        percents: dict[str, int] = {}  # of all servers, by method
        for gpu, card in self._meter.cards.items():
            samples = _gpu_samples(card, self._sampled_us[gpu])  # a sample is for one process
            for method, process_id in self._process_ids.items():
                tree = _tree(process_id)  # the ids of the server's processes
                # `smUtil`: percent of the sample's time in which the process used the GPU
                used_percents = [sample.smUtil for sample in samples if sample.pid in tree]
                percents[method] = max([percents.get(method, 0), *used_percents])
        return {
            method: percent / 100
            for method, percent in percents.items()
            if self._is_other(method) and percent
        }

    def _is_other(self, method: str) -> bool:
        """True if the server of a method is not the block's. Methods may share a server."""
        return self._process_ids[method] != self._process_ids.get(self._method)

    def use(self) -> ServerUse:
        """The memory of the block's server now, and the server's energy in the block.

        Each GPU and each processor package has an energy counter. A GPU's counter is used if the
        server has a process on it now, and only servers have. A package's counter is used if other
        programs took at most BUSY_SHARE of the processor. The idle power, which must be known,
        times the seconds of the block is subtracted. `absent` has the reasons for counters that are
        missing or were disturbed.
        """
        process_id = self._process_ids.get(self._method)
        if not process_id:
            return ServerUse(absent=(ELSEWHERE,))
        seconds = perf_counter() - self._began
        growth_j = self._meter.growth(self._joules)  # joules by counter
        # A phrase for each counter that other programs disturbed, and an empty text for the others.
        disturbances = {
            counter: self._disturbance(counter)
            for counter in growth_j
            if counter in self._idle_w and self._is_used(counter, process_id)
        }
        joules = {
            counter: growth_j[counter] - self._idle_w[counter] * seconds
            for counter, disturbance in disturbances.items()
            if not disturbance
        }
        # The reasons, without duplicates.
        reasons = dict.fromkeys([*self._meter.absent, *filter(None, disturbances.values())])
        memory_use = ServerUse(
            memory_bytes=memory_bytes(process_id),
            gpu_memory_bytes=gpu_memory_bytes(self._meter.cards.values(), _tree(process_id)),
            absent=tuple(reasons),
        )
        if not joules:
            return memory_use
        return replace_use(
            memory_use,
            energy_j=round(max(sum(joules.values()), 0.0), 3),
            meters=tuple(joules),
            idle_w=round(sum(self._idle_w[counter] for counter in joules), 2),
            tick_s=self._meter.tick_s,
        )

    def _disturbance(self, counter: str) -> str:
        """A phrase if programs other than servers used a counter's GPU or package, else an empty
        text.
        """
        card = self._meter.cards.get(counter)
        if card is None:  # the counter of a package
            return _OTHERS_ON_CPU if self._is_processor_shared() else ""
        other_processes = _processes_on(card).difference(*map(_tree, self._process_ids.values()))
        return _OTHERS_ON_GPU.format(counter) if other_processes else ""

    def _is_used(self, counter: str, process_id: int) -> bool:
        """True if a server uses the GPU of a counter. All servers use the processor packages."""
        card = self._meter.cards.get(counter)
        return card is None or not _processes_on(card).isdisjoint(_tree(process_id))

    def _is_processor_shared(self) -> bool:
        """True if other programs took more than BUSY_SHARE of the processor from the servers."""
        now = read_moment()
        now_s = self._cpu_seconds()
        # Methods may share a server, whose seconds count once.
        seconds_of_process = {
            self._process_ids[method]: now_s[method] - before_s
            for method, before_s in self._cpu_s.items()
        }
        with_servers = replace(now, own_s=now.own_s + sum(seconds_of_process.values()))
        return share_of_others(self._moment, with_servers) > BUSY_SHARE

    def _cpu_seconds(self) -> dict[str, float]:
        """CPU seconds of all servers on this machine, by method."""
        return {method: cpu_seconds(pid) for method, pid in self._process_ids.items()}


def _gpu_samples(card: Card, since_us: int) -> Sequence[Any]:
    """The driver's samples of a GPU's use by process, taken after the time `since_us`.

    The time is in microseconds of the driver's clock.
    """
    return card.query("nvmlDeviceGetProcessUtilization", since_us) or ()


def _processes_on(card: Card) -> set[int]:
    """The ids of the processes that compute on a GPU."""
    listed = card.query("nvmlDeviceGetComputeRunningProcesses") or ()
    return {process.pid for process in listed}


def _tree(process_id: int) -> set[int]:
    """The ids of a process and its descendants."""
    return {process.pid for process in process_tree(process_id)}
