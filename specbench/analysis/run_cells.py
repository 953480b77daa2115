"""Compute the cells of a run from its answers, the counters of servers, and counts of drafts."""

from collections.abc import Mapping
from dataclasses import replace

from specbench.analysis.cells import NO_STEPS, Arithmetic, CellKey, CellMetrics, CellSource
from specbench.analysis.costs import Cost
from specbench.analysis.drafting import Drafting
from specbench.analysis.overall import Axes
from specbench.analysis.records import POOLED
from specbench.analysis.server_counters import mat_of_blocks
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.log.run import BETWEEN, block_key


def measure_cells(
    source: CellSource,
    axes: Axes,
    costs: Mapping[CellKey, Cost],
    drafting: Drafting,
    bootstrap: Bootstrap,
    arithmetic: Arithmetic,
) -> dict[CellKey, CellMetrics]:
    """Compute each method's numbers at each temperature, on each task and on all tasks pooled.

    Args:
        source: selects the rows of each cell from the table of records.
        axes: the methods, temperatures and tasks of the run.
        costs: the costs of steps by cell. The pooled cells take their MAT from these.
        drafting: tells which answers of servers had drafts.
        bootstrap: the number of resamples and their seed, for intervals.
        arithmetic: the formula of the speedup.
    """
    cells: dict[CellKey, CellMetrics] = {}
    for temperature in axes.temperatures:
        for task in (*axes.tasks, POOLED):
            # The means over tasks have the intervals, so the pooled cell has none.
            draws = None if task == POOLED else Draws(bootstrap, task)
            for method in axes.methods:
                key = CellKey(method, temperature, task)
                cell = source.measure_cell(key, draws, arithmetic)
                # `without_part` removes a MAT that covers only some of the answers. If MAT is
                # missing, `_with_counters` takes it from the server's counters, if they give it.
                # `checked_cell` removes numbers if drafts were off in answers, or vanilla drafted.
                cell = drafting.without_part(cell, key)
                cell = _with_counters(cell, key, drafting, cells)
                cell = drafting.checked_cell(cell, key)
                if task == POOLED:  # so that MAT and cost are over the same steps
                    cell = _with_mat_of_costs(cell, costs.get(key))
                cells[key] = cell
    return cells


def _with_counters(
    cell: CellMetrics, key: CellKey, drafting: Drafting, cells: Mapping[CellKey, CellMetrics]
) -> CellMetrics:
    """Give a cell a MAT from the counters of its server, if its answers give none.

    A block is a group of requests that a server completed together, with the increase of its
    counters. If the counts of any block of the cell are impossible, MAT is missing. The cell stays
    as it is if its answers give MAT, if none of them is compared, or if there are no blocks. The
    cell of a category within a task also stays, since counters cover the whole task. The cell of
    all tasks leaves out the blocks of tasks without a compared answer. `cells` has the cells of the
    single tasks.
    """
    # key of a block -> a sentence about the contradiction in its counts
    contradictions = drafting.table.served.contradictions
    # The name of a task may end in BETWEEN and a category of its samples. POOLED: all tasks.
    task, *_ = key.task.partition(BETWEEN)
    blocks = [
        block
        for block in drafting.header.blocks
        if (block.method, block.temperature) == (key.method, key.temperature)
        and task in (block.task, POOLED)
    ]
    for block in blocks:
        if contradiction := contradictions.get(block_key(block)):
            missing = Missing(contradiction)
            return replace(cell, mat=missing, mat_macro=missing)
    if isinstance(cell.mat, Estimate) or not cell.num_samples or not blocks:
        return cell  # the answers give MAT, or there are no compared answers or no counters
    if task != key.task:  # a category
        return cell
    mat = mat_of_blocks(
        block
        for block in blocks
        if task != POOLED or cells.get(replace(key, task=block.task), cell).num_samples
    )
    # A reason other than NO_STEPS says more, such as how many answers have counts. It is kept if
    # the counters give no MAT either.
    has_own_reason = cell.mat != NO_STEPS
    return cell if has_own_reason and isinstance(mat, Missing) else replace(cell, mat=mat)


def _with_mat_of_costs(cell: CellMetrics, cost: Cost | None) -> CellMetrics:
    """Give the cell of all tasks the MAT of its costs, if both have one."""
    if cost is None or isinstance(cost.mat, Missing) or isinstance(cell.mat, Missing):
        return cell
    return replace(cell, mat=cost.mat)
