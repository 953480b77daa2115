"""Fall back to torch's operations if Triton cannot compile or launch a kernel.

The start-up check tries each kernel at a few shapes. Others come later, such as a wider head;
if the GPU cannot run them, the run must not end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from triton.errors import TritonError

from specbench.engine.layers.ops import Ops
from specbench.errors import reason_of

Guarded = TypeVar("Guarded", bound="GuardedOps")
P = ParamSpec("P")
T = TypeVar("T")

TRITONS = ("Triton Error", "PassManager::run failed")
"""Prefixes of errors of Triton's driver and compiler that are not a `TritonError`."""


class GuardedOps(Ops):
    """Operations that each switch to torch for good once Triton cannot launch them."""

    def tried(self, what: str, kernels: Callable[[], T], torchs: Callable[[], T]) -> T:
        """Result of `kernels`, or of `torchs` after a failure, whose reason is in `fallbacks`.

        Triton raises before the launch, so nothing has been written by then.
        """
        if what not in self.fallbacks:
            try:
                return kernels()
            except (TritonError, RuntimeError) as error:
                if not isinstance(error, TritonError) and not str(error).startswith(TRITONS):
                    raise
                self.fallbacks[what] = f"run by torch, since {reason_of(error)}"
        return torchs()


def or_torch(
    what: str,
) -> Callable[[Callable[Concatenate[Guarded, P], T]], Callable[Concatenate[Guarded, P], T]]:
    """Guard an operation: use that of `Ops` if Triton cannot launch it."""

    def guard(kernels: Callable[Concatenate[Guarded, P], T]) -> Any:
        torchs: Any = getattr(Ops, kernels.__name__)

        @wraps(kernels)
        def run(self: Guarded, *args: P.args, **named: P.kwargs) -> T:
            return self.tried(
                what, partial(kernels, self, *args, **named), partial(torchs, self, *args, **named)
            )

        return run

    return guard
