"""Energy counters of this machine: GPUs through NVML, processor packages through RAPL."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from specbench.machine.nvml import Card, driver, visible_cards
from specbench.machine.sampler import Sampler

GPU_TICK_S = 0.1
"""Seconds between two changes of a GPU's counter."""
PACKAGE_TICK_S = 0.001
"""Seconds between two changes of a package's counter."""
IDLE_S = 2.0
"""Seconds for which the power of an idle machine is measured."""
_POWERCAP = Path("/sys/class/powercap")
"""The folder in which Linux has RAPL's counters, for processors of Intel and AMD."""


class EnergyMeter:
    """The counters that can be read, by name, and the reasons why others cannot."""

    def __init__(self, cards: Sequence[Card], powercap: Path = _POWERCAP) -> None:
        self.absent: list[str] = []
        self.cards = {
            f"GPU {number}": card
            for number, card in enumerate(cards)
            if card.query("nvmlDeviceGetTotalEnergyConsumption") is not None
            and not is_partitioned(card)  # several programs share its energy
        }
        if len(self.cards) < len(cards):
            self.absent.append("a GPU has no counter, or is partitioned (MIG)")
        self._packages: dict[str, Path] = {}
        # intel-rapl:0 is a package, intel-rapl:0:1 a part of it.
        folders = [*powercap.glob("intel-rapl:[0-9]"), *powercap.glob("intel-rapl:[0-9][0-9]")]
        for folder in sorted(folders):
            try:
                name = (folder / "name").read_text().strip()
                int((folder / "energy_uj").read_text())
            except PermissionError:
                self.absent.append(f"no right to read {folder / 'energy_uj'}")
            except (OSError, ValueError):
                self.absent.append(f"{folder} has no energy")
            else:
                if name.startswith("package"):
                    self._packages[name] = folder
        if not folders:
            self.absent.append("the processor has no energy counter here")

    @property
    def tick_s(self) -> float:
        """Seconds between two changes of the slowest counter."""
        return GPU_TICK_S if self.cards else PACKAGE_TICK_S

    def read(self) -> dict[str, float]:
        """Joules since some moment, by counter."""
        joules = {}
        for name, card in self.cards.items():
            millijoules = card.query("nvmlDeviceGetTotalEnergyConsumption")
            if millijoules is not None:
                joules[name] = millijoules / 1e3
        for name, folder in self._packages.items():
            joules[name] = int((folder / "energy_uj").read_text()) / 1e6
        return joules

    def growth(
        self, before: Mapping[str, float], after: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Joules from an earlier reading to a later one, by default to now, by counter.

        A package's counter begins again at 0 after its largest number.
        """
        joules = {}
        for name, now in (self.read() if after is None else after).items():
            grown = now - before.get(name, now)
            if grown < 0 and name in self._packages:
                grown += int((self._packages[name] / "max_energy_range_uj").read_text()) / 1e6
            joules[name] = max(grown, 0.0)
        return joules


class TickSampler(Sampler):
    """Samples some of a meter's counters in a thread, from now on: their energy and their ticks."""

    interval_s = 0.02

    def __init__(self, meter: EnergyMeter, names: Iterable[str]) -> None:
        self._meter = meter
        self._latest = meter.read()
        self._ticks: dict[str, list[float]] = {name: [] for name in names}

    def sample(self) -> None:
        """Read the counters."""
        now = self._meter.read()
        growth = self._meter.growth(self._latest, now)
        for name, ticks in self._ticks.items():
            if joules := growth.get(name):
                ticks.append(joules)
        self._latest |= now  # the energy of a counter that was not read comes with the next reading

    @property
    def joules(self) -> float:
        """The energy up to the last sample."""
        return sum(map(sum, self._ticks.values()))

    @property
    def tick_j(self) -> float:
        """Joules of one tick of all counters: the sum of each counter's median tick."""
        return sum(median(ticks) for ticks in self._ticks.values() if ticks)

    @property
    def still(self) -> list[str]:
        """The counters that did not advance."""
        return [name for name, ticks in self._ticks.items() if not ticks]


def is_partitioned(card: Card) -> bool:
    """True if the card is partitioned (MIG)."""
    mig_mode = card.query("nvmlDeviceGetMigMode")  # (the mode now, the mode after a reset)
    return bool(mig_mode and mig_mode[0])


@contextmanager
def energy_meter(*, has_gpu: bool) -> Iterator[EnergyMeter]:
    """The counters of the processor and, with `has_gpu`, of the GPUs that programs see."""
    if not has_gpu:
        yield EnergyMeter(())
        return
    with driver() as nvml:
        yield EnergyMeter(visible_cards(nvml) if nvml else ())
