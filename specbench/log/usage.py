"""A run's use of the GPU and the processor, as parts of `run.json`.

This module has only the types. `machine.gpu_sampler` and `machine.cpu_sampler` measure the values.
"""

from typing import Literal

from msgspec import Struct

BUSY_SHARE = 0.1
"""Other programs cause a warning if their mean share of the cores is larger than this."""
BUSY_PERCENT = 10
"""A GPU counts as busy if its utilisation in percent before the run is at least this."""
THROTTLED_SHARE = 0.02
"""Throttling causes a warning if it is found in at least this share of samples."""


class Span(Struct, frozen=True):
    """Minimum, mean and maximum of the sampled values."""

    min: float
    """Smallest value."""
    mean: float
    """Mean value."""
    max: float
    """Largest value."""


class GpuUse(Struct, frozen=True):
    """The GPU during a run, sampled from the driver."""

    num_samples: int
    """Samples taken."""
    interval_s: float
    """Seconds between samples."""
    sm_clock_mhz: Span | None
    """Clock of the multiprocessors in MHz."""
    memory_clock_mhz: Span | None
    """Clock of the memory in MHz."""
    temperature_c: Span | None
    """Temperature in degrees Celsius."""
    power_w: Span | None
    """Power draw in watts."""
    memory_used_bytes: Span | None
    """Bytes of memory that all processes use on the card."""
    throttled: dict[str, float]
    """Share of samples with throttling, by reason."""
    percent_busy_before: int | None
    """Utilisation in percent before the run."""
    other_processes_before: int
    """Other processes on the card before the run."""
    other_processes_most: int
    """Largest number of other processes on the card at once."""
    energy_source: Literal["counter", "power"] | None
    """Source of `energy_j`: the driver's counter, or sampled power. Null without energy."""
    is_partition: bool
    """True if the card is partitioned (MIG)."""
    is_lost: bool
    """True if the driver lost the card during the run."""

    @property
    def warnings(self) -> list[str]:
        """Sentences with reasons to doubt times measured on the GPU. Empty if the times are sound.

        `other_processes_most` is the largest number of other processes on the card at once.
        `percent_busy_before` is the card's utilisation before the run, None if unknown. `throttled`
        maps a reason to the share of samples (0 to 1) in which it lowered the clocks.
        """
        sentences = []
        if self.other_processes_most:
            num_others = self.other_processes_most
            others = "1 other process" if num_others == 1 else f"{num_others} other processes"
            sentences.append(
                f"The GPU was shared with {others}: times are noisy, and the energy is not only "
                "this run's."
            )
        elif (self.percent_busy_before or 0) >= BUSY_PERCENT:
            sentences.append(
                f"The GPU was {self.percent_busy_before} % busy before the run began: times are "
                "noisy."
            )
        reasons = [  # each with the percentage of samples; rare reasons are left out
            f"{reason} {share * 100:.0f} %"
            for reason, share in self.throttled.items()
            if share >= THROTTLED_SHARE
        ]
        if reasons:
            sentences.append(
                f"The GPU lowered its clocks in part of the run ({', '.join(reasons)}): cool it, "
                "raise its power limit, or lock its clocks (nvidia-smi -lgc)."
            )
        if self.is_partition:
            sentences.append("The GPU is cut into partitions (MIG): bandwidth and heat are shared.")
        if self.is_lost:
            sentences.append(
                "The driver lost the GPU during the run: see `nvidia-smi` and its log."
            )
        return sentences


class MethodEnergy(Struct, frozen=True, omit_defaults=True):
    """Energy of a method that repeated the run's prompts while no other method ran."""

    method: str
    """Method with the options that were given."""
    temperature: float
    """Sampling temperature."""
    joules_per_token: float | None = None
    """Joules / new tokens, including the power of the idle machine. Absent if not measured."""
    num_tokens: int = 0
    """New tokens between the readings of the counters."""
    duration_s: float = 0.0
    """Seconds between the readings."""
    tick_j: float = 0.0
    """Median step of the counters, in joules."""
    idle_w: float = 0.0
    """Watts of the idle machine before the first method."""
    meters: tuple[str, ...] = ()
    """GPUs or processor packages whose energy was measured."""
    absent: str = ""
    """Reason why energy was not measured. Absent if it was."""


class CpuUse(Struct, frozen=True):
    """The processor during a run, from the system's counters."""

    num_samples: int
    """Samples taken."""
    interval_s: float
    """Seconds between samples."""
    share_of_others: Span
    """Share of the cores that other programs used."""
    clock_mhz: Span | None = None
    """Mean clock of the cores in MHz. Null if the machine does not report it."""

    @property
    def others_warning(self) -> str | None:
        """A sentence about other programs that used the processor, or None if they used little."""
        if self.share_of_others.mean <= BUSY_SHARE:
            return None
        mean_percent = self.share_of_others.mean * 100
        most_percent = self.share_of_others.max * 100
        return (
            f"Other programs took {mean_percent:.0f} % of the processor during the run, and up to "
            f"{most_percent:.0f} % in one second: times are noisy. Stop them, and repeat the run."
        )
