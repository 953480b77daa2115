"""Query GPUs through NVML.

A query that the card, the driver or the user's rights do not allow returns None and raises
nothing. A card that fell off the bus is not queried again.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any


class Card:
    """A GPU and its driver. `query` takes the name of any NVML function of a device."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.is_lost = False
        self._handle = handle

    def query(self, name: str, *arguments: Any) -> Any:
        """The driver's answer to a query, or None if it has none."""
        function = getattr(self.nvml, name, None)  # older bindings lack some functions
        if self.is_lost or function is None:
            return None
        try:
            return function(self._handle, *arguments)
        except self.nvml.NVMLError as error:
            self.is_lost |= error.value == self.nvml.NVML_ERROR_GPU_IS_LOST
            return None

    def energy_j(self) -> float | None:
        """The joules that the card's counter has counted since some moment, or None if unknown.

        The counter advances about every 0.1 s.
        """
        millijoules = self.query("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1e3

    def is_partitioned(self) -> bool:
        """True if the card is partitioned (MIG), so that several programs share its energy."""
        mig_mode = self.query("nvmlDeviceGetMigMode")  # (the mode now, the mode after a reset)
        return bool(mig_mode and mig_mode[0])


@contextmanager
def driver() -> Iterator[Any]:
    """NVML, ready for queries while the block runs. None without its bindings or a driver."""
    try:
        import pynvml as nvml
    except ImportError:  # in a checkout that is not installed
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def find_card(nvml: Any, properties: Any) -> Card | None:
    """The GPU that torch describes, or None if NVML does not know it.

    GPUs are found by UUID, because the two libraries number them differently, and
    CUDA_VISIBLE_DEVICES changes only torch's numbers.
    """
    for kind in ("GPU", "MIG"):
        with suppress(nvml.NVMLError):
            return Card(nvml, nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{properties.uuid}"))
    return None


def visible_cards(nvml: Any) -> Sequence[Card]:
    """The GPUs that programs see, in order: those in CUDA_VISIBLE_DEVICES, or all.

    CUDA_VISIBLE_DEVICES lists numbers or UUIDs. Its numbers are those of NVML if all GPUs are
    alike.
    """
    try:
        handles = [*map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))]
        names = os.environ.get("CUDA_VISIBLE_DEVICES")
        if names is not None:
            handles = [
                handles[int(name)] if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
                for name in names.replace(" ", "").split(",")
                if name
            ]
    except (nvml.NVMLError, IndexError):
        return ()
    return [Card(nvml, handle) for handle in handles]
