"""Linear layers over a single row: their shapes, and the choice between the kernel and torch by
result and time. Needs neither Triton nor a GPU.

Products of more rows are torch's: in Vicuna-13B's layers on an H100, a kernel of our own was at
most 0.6 % faster for 16 to 64 rows (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.layers.experts import Act
from specbench.engine.layers.operands import Norm
from specbench.engine.layers.ops import Ops, gelu_tanh

MARGIN = 0.005
"""Share of a chain's time by which torch must be faster to replace the kernel.

Without it, noise would make the choice, and so the rounding of results: kernels and cuBLAS add
in different orders.
"""
ROWS = {False: 4, True: 2}
"""Weight rows that each program of the kernel reads, by whether the product is gated.

Any number adds in the same order, so results are bitwise equal. Of 1, 2 and 4, these took at most
0.4 % of a chain's time more than the fastest for any product of Vicuna-13B's layers and of one of
768 numbers on an H100 (results/recorded/h100-vicuna-13b).
"""


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer over a single row."""

    num_out: int  # of each half, if it is gated
    size: int
    is_gated: bool = False

    def __str__(self) -> str:
        return f"products of a row, {'2 x ' * self.is_gated}{self.num_out} x {self.size}"


@dataclass(frozen=True, slots=True, eq=False)
class LinearCall:
    """A call of a linear layer: x [n, input], after `norm` if given; weight [output, input]."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    norm: Norm | None = None
    residual: Tensor | None = None  # [n, output]; the result is added to it in place
    is_gated: bool = False
    is_gelu: bool = False  # the gate's activation; otherwise silu

    @property
    def act(self) -> Act:
        return gelu_tanh if self.is_gelu else silu

    @property
    def product(self) -> Product | None:
        """The product of a single row; None for more."""
        if len(self.x) != 1:
            return None
        num_out, size = self.weight.shape
        return Product(num_out // (1 + self.is_gated), size, self.is_gated)

    @property
    def is_dense(self) -> bool:
        """True if rows are contiguous and the weight is aligned, as the kernels require."""
        whole = [part for part in (self.weight, self.residual) if part is not None]
        is_aligned = self.weight.data_ptr() % 16 == 0
        return is_aligned and self.x.stride(1) == 1 and all(part.is_contiguous() for part in whole)

    def by(self, ops: Ops) -> Tensor:
        """The result of these operations."""
        if not self.is_gated:
            return ops.project(
                self.x, self.weight, self.bias, norm=self.norm, residual=self.residual
            )
        assert self.norm is not None  # a gate has a norm before it
        return ops.gated(self.x, self.weight, self.bias, self.norm, self.act)


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel or torch, which is cuBLAS on a GPU, for a product; with times and a reason."""

    product: Product
    is_kernel: bool
    seconds: Sequence[float] = ()  # of the chain with the kernel, and with torch
    wrong: str | None = None  # reason that the kernel is not used

    def to_json(self) -> dict[str, Any]:
        """The choice for the header of a run, with times in microseconds."""
        is_gated, kernel = self.product.is_gated, f"row kernel, {ROWS[self.product.is_gated]} rows"
        times = (round(seconds * 1e6, 2) for seconds in self.seconds)
        return {
            "rows": 1,
            "weight": [self.product.num_out * (1 + is_gated), self.product.size],
            "is_gated": is_gated,
            "launch": kernel if self.is_kernel else "torch",
            "chain_us": dict(zip((kernel, "torch"), times, strict=False)),
            "rejected": {kernel: self.wrong} if self.wrong else {},
        }


def choose(product: Product, wrong: str | None, measure: Callable[[], Sequence[float]]) -> Choice:
    """Choose by result and by time: the kernel, unless torch is faster by `MARGIN`.

    `wrong` is the reason that the kernel cannot be used. `measure` returns the seconds of a chain
    with the kernel, and with torch.
    """
    if wrong is not None:
        return Choice(product, is_kernel=False, wrong=wrong)
    by_kernel, by_torch = measure()
    is_kernel = by_torch >= by_kernel * (1 - MARGIN)
    return Choice(product, is_kernel, (by_kernel, by_torch))
