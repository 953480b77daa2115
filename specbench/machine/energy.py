"""Read this machine's energy counters: GPUs through NVML, processor packages through RAPL."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
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
"""The folder in which Linux shows RAPL's counters. Processors of Intel and AMD have them."""


class EnergyMeter:
    """The energy counters that can be read, and the reasons why others cannot."""

    def __init__(self, cards: Sequence[Card], powercap: Path = _POWERCAP) -> None:
        self.absent: list[str] = []
        self.cards = {
            f"GPU {number}": card
            for number, card in enumerate(cards)
            if card.energy_j() is not None and not card.is_partitioned()
        }
        if len(self.cards) < len(cards):
            self.absent.append("a GPU has no counter, or is partitioned (MIG)")
        # Name of a package -> its counter's file, and the joules after which the counter restarts.
        self._packages: dict[str, tuple[Path, float]] = {}
        # intel-rapl:0 is a package, intel-rapl:0:1 a part of it.
        folders = [*powercap.glob("intel-rapl:[0-9]"), *powercap.glob("intel-rapl:[0-9][0-9]")]
        for folder in sorted(folders):
            try:
                name = (folder / "name").read_text().strip()
                int((folder / "energy_uj").read_text())
                range_j = int((folder / "max_energy_range_uj").read_text()) / 1e6
            except PermissionError:
                self.absent.append(f"no right to read {folder / 'energy_uj'}")
            except (OSError, ValueError):
                self.absent.append(f"{folder} has no energy counter")
            else:
                if name.startswith("package"):
                    self._packages[name] = (folder / "energy_uj", range_j)
        if not folders:
            self.absent.append("the processor has no energy counter here")

    @property
    def tick_s(self) -> float:
        """Seconds between two changes of the slowest counter."""
        return GPU_TICK_S if self.cards else PACKAGE_TICK_S

    def read(self) -> dict[str, float]:
        """The joules of each counter since some moment, by the counter's name.

        A counter that cannot be read now is left out, and from now on `absent` says so.
        """
        readings = {name: card.energy_j() for name, card in self.cards.items()}
        for name, (file, _) in self._packages.items():
            with suppress(OSError, ValueError):
                readings[name] = int(file.read_text()) / 1e6
        joules = {name: reading for name, reading in readings.items() if reading is not None}
        lost = [name for name in (*self.cards, *self._packages) if name not in joules]
        reasons = [f"the counter of {name} could not always be read" for name in lost]
        self.absent += [reason for reason in reasons if reason not in self.absent]
        return joules

    def growth(
        self, before: Mapping[str, float], after: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """The joules that each counter grew by since the reading `before`, up to `after` or now.

        A counter that either reading lacks is left out. A package's counter starts again at 0 after
        its largest number.
        """
        latest = self.read() if after is None else after
        growth_j = {name: latest[name] - before[name] for name in latest if name in before}
        for name, (_, range_j) in self._packages.items():
            if growth_j.get(name, 0.0) < 0:
                growth_j[name] += range_j
        return {name: max(grown_j, 0.0) for name, grown_j in growth_j.items()}


class TickSampler(Sampler):
    """Samples counters of a meter in a thread, to find their energy and the size of their ticks."""

    interval_s = 0.02

    def __init__(self, meter: EnergyMeter, names: Iterable[str]) -> None:
        self._meter = meter
        self._latest = self._now = meter.read()
        self._ticks: dict[str, list[float]] = {name: [] for name in names}

    def sample(self) -> None:
        """Read the counters."""
        self._now = self._meter.read()
        growth = self._meter.growth(self._latest, self._now)
        for name, ticks in self._ticks.items():
            if joules := growth.get(name):
                ticks.append(joules)
        # A counter that is missing now keeps its last reading.
        self._latest = self._latest | self._now

    @property
    def joules(self) -> float:
        """The joules that all counters added up to the last sample."""
        return sum(map(sum, self._ticks.values()))

    @property
    def tick_j(self) -> float:
        """The joules of one tick of all counters together: the sum of their median ticks."""
        return sum(median(ticks) for ticks in self._ticks.values() if ticks)

    @property
    def still(self) -> list[str]:
        """The counters that did not advance, or that the last sample could not read."""
        return [name for name, ticks in self._ticks.items() if not ticks or name not in self._now]


@contextmanager
def energy_meter(*, has_gpu: bool) -> Iterator[EnergyMeter]:
    """The energy meter of the processor and, with `has_gpu`, of the visible GPUs."""
    with driver() if has_gpu else nullcontext() as nvml:
        yield EnergyMeter(visible_cards(nvml) if nvml else ())
