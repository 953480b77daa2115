"""Energy counters of this machine: those of GPUs by NVML, those of processor packages by RAPL."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from specbench.machine.nvml import Card, driver, visible_cards

GPU_TICK_S = 0.1
"""Seconds between two changes of a GPU's counter."""
PACKAGE_TICK_S = 0.001
"""The same of a package's."""
_POWERCAP = Path("/sys/class/powercap")
"""Where Linux has RAPL, for processors of Intel and AMD."""


class EnergyMeter:
    """The counters that can be read, by name, and the reasons why others cannot."""

    def __init__(self, cards: Sequence[Card], powercap: Path = _POWERCAP) -> None:
        self.absent: list[str] = []
        self.cards = {
            f"GPU {number}": card
            for number, card in enumerate(cards)
            if card.query("nvmlDeviceGetTotalEnergyConsumption") is not None
            and not is_partitioned(card)  # its energy is not of one program alone
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

    def growth(self, before: Mapping[str, float]) -> dict[str, float]:
        """Joules since an earlier reading, by counter.

        The counter of a package begins anew when it has reached its largest number.
        """
        joules = {}
        for name, now in self.read().items():
            grown = now - before.get(name, now)
            if grown < 0 and name in self._packages:
                grown += int((self._packages[name] / "max_energy_range_uj").read_text()) / 1e6
            joules[name] = max(grown, 0.0)
        return joules


def is_partitioned(card: Card) -> bool:
    """True if the card is partitioned (MIG)."""
    mig_mode = card.query("nvmlDeviceGetMigMode")  # now, and after the next reset
    return bool(mig_mode and mig_mode[0])


@contextmanager
def energy_meter(*, has_gpu: bool) -> Iterator[EnergyMeter]:
    """The counters of the processor and, with `has_gpu`, of the GPUs that programs see."""
    if not has_gpu:
        yield EnergyMeter(())
        return
    with driver() as nvml:
        yield EnergyMeter(visible_cards(nvml) if nvml else ())
