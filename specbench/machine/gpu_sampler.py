"""Sample a GPU during a run: clocks, temperature, power, throttling, and other processes.

A thread queries the driver ten times per second during the run. The run does not wait for the
answers, and continues without them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from specbench.log.machine import gpu_numbers
from specbench.log.usage import GpuUse
from specbench.machine.nvml import Card, driver, find_card
from specbench.machine.sampler import Sampler, Spread

PROCESS_ROUNDS = 20
"""The number of samples per listing of processes, which costs more than the other queries."""

THROTTLING = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""NVML's bits for the reasons why a busy GPU lowers its clocks."""


_SPANS = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "memory_used_bytes")


class GpuSampler(Sampler):
    """Samples one card ten times per second.

    `is_partition` is true if the card is partitioned (MIG). The card's power is then not this run's
    alone, so energy is not measured. `holds_card` returns true once this process uses the card.
    """

    interval_s = 0.1

    def __init__(self, card: Card, *, holds_card: Callable[[], bool] = lambda: False) -> None:
        self._card = card
        self._holds_card = holds_card
        self.is_partition = card.is_partitioned()
        self._has_counter = card.energy_j() is not None
        rates = card.query("nvmlDeviceGetUtilizationRates")
        self.percent_before = None if rates is None else int(rates.gpu)
        self.others_before = self._num_others()
        self.others_most = self.others_before
        self._spans = {name: Spread() for name in _SPANS}
        self._reasons: Counter[int] = Counter()
        self._num_samples = 0

    @property
    def is_over(self) -> bool:
        return self._card.is_lost

    def start(self) -> None:
        self.sample()
        super().start()

    def energy_j(self) -> float | None:
        """The joules that the card has used since some moment. None if unknown, as for a
        partition.
        """
        return None if self.is_partition else self._card.energy_j()

    def sample(self) -> None:
        """Query the card once."""
        query = self._card.query
        nvml = self._card.nvml
        milliwatts = query("nvmlDeviceGetPowerUsage")
        memory = query("nvmlDeviceGetMemoryInfo")
        readings = {
            "sm_clock_mhz": query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            "temperature_c": query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            "power_w": None if milliwatts is None else milliwatts / 1e3,
            "memory_used_bytes": None if memory is None else int(memory.used),
        }
        reasons = query("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # older drivers and bindings have the old name
            reasons = query("nvmlDeviceGetCurrentClocksThrottleReasons")
        if self._card.is_lost:
            return
        for name, reading in readings.items():
            self._spans[name].add(reading)
        self._reasons.update(bit for bit in THROTTLING if (reasons or 0) & bit)
        if self._num_samples % PROCESS_ROUNDS == 0:
            self.others_most = max(self.others_most, self._num_others())
        self._num_samples += 1

    def describe(self) -> GpuUse:
        """The field `gpu` of the header."""
        has_energy = self._has_counter and not self.is_partition
        throttled = {
            THROTTLING[bit]: num_throttled / self._num_samples
            for bit, num_throttled in sorted(self._reasons.items())
        }
        return GpuUse(
            num_samples=self._num_samples,
            interval_s=self.interval_s,
            **{name: spread.span() for name, spread in self._spans.items()},
            throttled=throttled,
            percent_busy_before=self.percent_before,
            other_processes_before=self.others_before,
            other_processes_most=self.others_most,
            energy_source="counter" if has_energy else None,
            is_partition=self.is_partition,
            is_lost=self._card.is_lost,
        )

    def _num_others(self) -> int:
        """The number of other processes that compute on the card.

        In a container NVML lists other process ids or none. So if this process holds the card,
        one of the listed processes is taken to be this process.
        """
        processes = self._card.query("nvmlDeviceGetComputeRunningProcesses") or ()
        return max(0, len(processes) - 1) if self._holds_card() else len(processes)


@contextmanager
def gpu_sampler(device: str) -> Iterator[GpuSampler | None]:
    """A sampler of a device's card. It is not started yet, and is stopped when the block ends.

    With several GPUs, the first is sampled. None on a CPU, or if the driver cannot be queried.
    """
    import torch

    with driver() if device.startswith("cuda") else nullcontext() as nvml:
        card = None
        if nvml is not None:
            index = gpu_numbers(device)[0]
            card = find_card(nvml, torch.cuda.get_device_properties(index))
        if card is None:
            yield None
            return
        sampler = GpuSampler(card, holds_card=torch.cuda.is_initialized)
        try:
            yield sampler
        finally:
            sampler.stop()
