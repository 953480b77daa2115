"""A product of up to 64 rows with a weight that streams through the tensor cores of a Hopper GPU.

The rows of the weight are the long side of the instructions (M of wgmma). A tile is a block of
these rows. Each step loads some columns of a tile by TMA, and several steps are loaded ahead. The
steps of all tiles form one sequence. Each program takes an equal share of it, so that all
processors end together (stream-K).

If several programs share a tile, each stores its sums. The last program to arrive adds them in the
order of the columns, so the result does not depend on the order of arrival.
"""

import triton
import triton.language as tl

from specbench.engine.kernels.triton_kernels import follow


@triton.jit
def stream_product(
    weight_tiles,
    x_tiles,
    weight,
    out,
    parts,
    arrived,
    num_rows,
    num_out,
    size,
    IS_ADDED: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Multiply x [num_rows, size] with the weight [num_out, size].

    The product is stored in `out` [num_rows, num_out], or added to it.

    `weight_tiles` and `x_tiles` describe the weight and x in blocks of BLOCK_IN columns. `parts`
    has room for two tiles of sums per program. `arrived` counts the programs that have stored their
    sums of a shared tile. It starts at 0, and the last program sets it back to 0. With EARLY, the
    first blocks of the weight are requested before x is ready.
    """
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    num_steps = tl.cdiv(size, BLOCK_IN)  # steps of a tile
    num_units = tl.cdiv(num_out, BLOCK_OUT) * num_steps  # steps of all tiles
    begin = program * num_units // num_programs
    end = (program + 1) * num_units // num_programs
    first_tile, last_tile = begin // num_steps, (end - 1) // num_steps
    if EARLY:
        column = begin % num_steps * BLOCK_IN
        _fetch(weight, first_tile * BLOCK_OUT, column, num_out, size, BLOCK_OUT, STAGES * BLOCK_IN)
    follow(EARLY)
    for tile in tl.range(first_tile, last_tile + 1):
        first = tl.maximum(begin - tile * num_steps, 0)
        stop = tl.minimum(end - tile * num_steps, num_steps)
        sums = tl.zeros([BLOCK_OUT, BLOCK_ROWS], tl.float32)
        for step in tl.range(first, stop, num_stages=STAGES):
            weights = weight_tiles.load([tile * BLOCK_OUT, step * BLOCK_IN])
            rows = x_tiles.load([0, step * BLOCK_IN])
            sums = tl.dot(weights, rows.T, sums)
        if EARLY and tile < last_tile:
            row = (tile + 1) * BLOCK_OUT
            _fetch(weight, row, 0, num_out, size, BLOCK_OUT, STAGES * BLOCK_IN)
        if stop - first == num_steps:
            _write(sums, out, tile, num_rows, num_out, IS_ADDED)
        else:
            _join(
                sums, out, parts, arrived, tile, first == 0, num_steps, num_rows, num_out, IS_ADDED
            )


@triton.jit
def _fetch(weight, row, column, num_out, size, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Request a block of ROWS rows and WIDTH columns of the weight into the L2 cache."""
    rows = tl.minimum(row + tl.arange(0, ROWS), num_out - 1)
    places = weight + rows.to(tl.int64) * size + column
    width = tl.full([ROWS], 0, tl.int32) + tl.minimum(WIDTH, size - column)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [places.to(tl.int64), width * (weight.dtype.element_ty.primitive_bitwidth // 8)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _write(sums, out, tile, num_rows, num_out, IS_ADDED: tl.constexpr):
    """Store the finished sums of a tile in `out`, or add them to `out`."""
    columns = tile * sums.shape[0] + tl.arange(0, sums.shape[0])
    rows = tl.arange(0, sums.shape[1])
    is_in = (columns < num_out)[:, None] & (rows < num_rows)[None, :]
    places = out + rows[None, :] * num_out + columns[:, None]
    if IS_ADDED:
        sums += tl.load(places, mask=is_in, other=0.0).to(tl.float32)
    tl.store(places, sums.to(out.dtype.element_ty), mask=is_in)


@triton.jit
def _join(
    sums,
    out,
    parts,
    arrived,
    tile,
    is_begun,
    num_steps,
    num_rows,
    num_out,
    IS_ADDED: tl.constexpr,
):
    """Store a program's sums of a shared tile. The last program to arrive writes their total.

    A program has consecutive steps, so it shares at most two tiles: its first tile, which another
    program began, and its last tile, which it begins itself (`is_begun`). Tiles between them belong
    to this program alone. Each of the two shared tiles has a place in `parts`.
    """
    height: tl.constexpr = sums.shape[0]
    width: tl.constexpr = sums.shape[1]
    program, num_programs = tl.program_id(0), tl.num_programs(0)
    # Program p begins at unit p * num_units // num_programs. The programs that have the first and
    # the last unit of the tile are:
    num_units = tl.cdiv(num_out, height) * num_steps
    first = ((tile * num_steps + 1) * num_programs - 1) // num_units
    last = ((tile + 1) * num_steps * num_programs - 1) // num_units
    places = parts + tl.arange(0, height)[:, None] * width + tl.arange(0, width)[None, :]
    tl.store(places + (2 * program + is_begun.to(tl.int32)) * (height * width), sums)
    tl.debug_barrier()  # all threads have stored
    if tl.atomic_add(arrived + tile, 1, sem="acq_rel") == last - first:
        tl.store(arrived + tile, 0)
        total = tl.load(places + (2 * first + 1) * (height * width), cache_modifier=".cg")
        for other in tl.range(first + 1, last + 1):
            total += tl.load(places + 2 * other * (height * width), cache_modifier=".cg")
        _write(total, out, tile, num_rows, num_out, IS_ADDED)
