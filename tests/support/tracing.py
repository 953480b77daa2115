"""Recordings on a CPU: what a function did once, as a list of operations that is run again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from specbench.engine.graphs import Recording


class TraceRecorder:
    """Records like a CUDA graph: every value that was on the host by then stays what it was.

    A function that reads a tensor's value while it is recorded raises, as it does there.
    """

    num_recordings = 0

    def __call__(
        self, function: Callable[[], tuple[Tensor, ...]], generators: Iterable[torch.Generator]
    ) -> Recording:
        self.num_recordings += 1
        traced = make_fx(function)()
        outputs = tuple(part.clone() for part in traced())

        def replay() -> None:
            for buffer, part in zip(outputs, traced(), strict=True):
                buffer.copy_(part)

        return Recording(outputs, replay)


def can_trace_draws() -> bool:
    """Whether this torch traces functions that draw from a generator of their own."""
    generator = torch.Generator()
    try:
        make_fx(lambda: torch.rand(1, generator=generator))()
    except RuntimeError:
        return False
    return True
