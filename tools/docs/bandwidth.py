"""Compute the nominal bandwidth of the memory from which a recorded run read its weights."""

from specbench.report.results import Report

BUS_BITS = {"NVIDIA H100 80GB HBM3": 5120}
"""Bits of the memory bus, for cards whose recorded runs do not state them."""


def nominal_bandwidth(report: Report) -> float:
    """Return the card's bytes/s from the memory's clock and bus width, or 0 if not known."""
    info = report.sources[0].info
    if info.roofline and info.roofline.nominal_bytes_per_s:
        return info.roofline.nominal_bytes_per_s
    clock = info.gpu.memory_clock_mhz if info.gpu else None
    if clock is None:
        return 0.0
    # Data move twice per clock.
    return 2 * clock.max * 1e6 * BUS_BITS.get(info.hardware_name, 0) / 8
