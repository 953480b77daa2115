"""The candidate's launches that are compared, and operations whose products it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.gpu.candidates.stream_kernel import stream_product
from specbench.engine.kernels.triton_ops import TritonOps
from specbench.engine.layers.experts import Act
from specbench.engine.layers.operands import Norm

MOST_ROWS = 64
"""Largest number of rows that the candidate multiplies. For more, cuBLAS is as fast."""
MOST_TILES = 4096
"""Largest number of tiles that a weight may have."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Sizes of a launch. A tile has `block_out` rows; each step multiplies `block_in` columns."""

    block_out: int
    block_in: int
    num_stages: int
    num_warps: int
    per_processor: int = 1
    """Number of programs that a processor holds at once."""

    @property
    def name(self) -> str:
        return (
            f"{self.block_out}x{self.block_in}, {self.num_stages} stages, "
            f"{self.num_warps} warps, {self.per_processor} per processor"
        )


LAUNCHES = {
    16: (
        Launch(128, 128, 5, 4),
        Launch(256, 64, 5, 8),
        Launch(128, 64, 5, 4, 2),
        Launch(64, 128, 5, 4, 2),
    ),
    32: (
        Launch(128, 128, 4, 4),
        Launch(256, 64, 5, 8),
        Launch(128, 64, 5, 4, 2),
        Launch(128, 64, 8, 4),
    ),
    64: (
        Launch(128, 128, 4, 4),
        Launch(256, 64, 5, 8),
        Launch(128, 64, 4, 4, 2),
        Launch(128, 64, 8, 4),
    ),
}
"""The launches to compare, by the block's number of rows. A step reads 16 or 32 KiB of a tile."""


def block_rows_of(num_rows: int) -> int:
    """Rows of the block that holds the `num_rows` rows of x."""
    return max(16, triton.next_power_of_2(num_rows))


class StreamOps(TritonOps):
    """The kernels of a run, except that the candidate computes products of 2 to 64 rows.

    cuBLAS still computes products with a bias. TMA needs rows that begin at multiples of 16 bytes.
    """

    def __init__(
        self, num_processors: int, launch: Launch, device: torch.device, *, is_early: bool = False
    ) -> None:
        super().__init__(num_processors, is_early=is_early)
        self.name = launch.name
        self._product = launch
        self._num_programs = num_processors * launch.per_processor
        tile = launch.block_out * MOST_ROWS
        self._parts = torch.empty(self._num_programs * 2 * tile, device=device)
        self._arrived = torch.zeros(MOST_TILES, dtype=torch.int32, device=device)

    def project(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        if len(x) == 1 or len(x) > MOST_ROWS or bias is not None:
            return super().project(x, weight, bias, norm=norm, residual=residual)
        return self.stream(x if norm is None else self.norm(x, norm), weight, residual)

    def _product_gated(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm, act: Act
    ) -> Tensor:
        return self._gate(self.project(x, weight, bias, norm=norm), act)

    def stream(self, x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
        """The product of x [n, input] and weight [output, input], added to `residual` if given."""
        launch, num_rows = self._product, len(x)
        num_out, size = weight.shape
        block_rows = block_rows_of(num_rows)
        num_units = triton.cdiv(num_out, launch.block_out) * triton.cdiv(size, launch.block_in)
        out = x.new_empty(num_rows, num_out) if residual is None else residual
        stream_product[(min(self._num_programs, num_units),)](
            TensorDescriptor.from_tensor(weight, [launch.block_out, launch.block_in]),
            TensorDescriptor.from_tensor(x, [block_rows, launch.block_in]),
            weight,
            out,
            self._parts,
            self._arrived,
            num_rows,
            num_out,
            size,
            IS_ADDED=residual is not None,
            BLOCK_OUT=launch.block_out,
            BLOCK_ROWS=block_rows,
            BLOCK_IN=launch.block_in,
            STAGES=launch.num_stages,
            num_warps=launch.num_warps,
            **self._launch,
        )
        return out
