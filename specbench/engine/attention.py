"""Torch's attention kernels: the enabled ones, and a context manager that disables cuDNN's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.backends import cuda


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Disable cuDNN's attention in the block, then restore the caller's setting. Also a decorator.

    Torch prefers it on recent GPUs in half precision. It builds a plan for every new length,
    in a large part of a second: the first method to prefill a prompt would pay for it, and SpS
    within its decode time.
    """
    was_enabled = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(was_enabled)


def attention_kernels() -> list[str]:
    """Kernels that torch may choose on a GPU with the current settings."""
    switches = {
        "flash": cuda.flash_sdp_enabled(),
        "memory-efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return [name for name, is_enabled in switches.items() if is_enabled]
