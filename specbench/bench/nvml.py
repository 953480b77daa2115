"""One card, asked through NVML, the driver's interface.

Knows questions and answers. An answer that a card, a driver or this user's rights do not give is
None; nothing is raised for it, and a card that fell off its bus is not asked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NEVER = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND")
"""Errors after which a question need not be asked again."""


class Card:
    """A card and its driver. `ask` takes the name of any NVML function of a device."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.is_lost = False
        self._handle = handle
        self._never = {getattr(nvml, name) for name in _NEVER}
        self._mute: set[str] = set()

    def ask(self, question: str, *arguments: Any) -> Any:
        """The driver's answer; None where it has none."""
        function = getattr(self.nvml, question, None)  # None in bindings of another age
        if self.is_lost or function is None or question in self._mute:
            return None
        try:
            return function(self._handle, *arguments)
        except self.nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code == self.nvml.NVML_ERROR_GPU_IS_LOST:
                self.is_lost = True
            elif code in self._never:
                self._mute.add(question)
            return None


@contextmanager
def open_card(device: str) -> Iterator[Card | None]:
    """The card behind "cuda" or "cuda:1"; None on a CPU, or where the driver cannot be asked."""
    nvml = _open_nvml() if device.startswith("cuda") else None
    if nvml is None:
        yield None
        return
    import torch

    try:
        yield find_card(nvml, torch.cuda.get_device_properties(device))
    finally:
        nvml.nvmlShutdown()


def find_card(nvml: Any, properties: Any) -> Card | None:
    """The card that torch describes; None where NVML has no such card.

    By UUID, else by bus: the two libraries number cards differently, and CUDA_VISIBLE_DEVICES moves
    torch's numbers only.
    """
    uuid, bus = getattr(properties, "uuid", None), getattr(properties, "pci_bus_id", None)
    tries = [(nvml.nvmlDeviceGetHandleByUUID, f"{kind}-{uuid}") for kind in ("GPU", "MIG") if uuid]
    if bus is not None:
        domain, slot = (getattr(properties, f"pci_{name}_id", 0) for name in ("domain", "device"))
        tries.append((nvml.nvmlDeviceGetHandleByPciBusId, f"{domain:08X}:{bus:02X}:{slot:02X}.0"))
    for find, name in tries:
        try:
            return Card(nvml, find(name))
        except nvml.NVMLError:
            continue
    return None


def _open_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
