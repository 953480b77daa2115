"""Make the table of a run's records once for each load."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.analysis.records import RecordTable, make_table
from specbench.log.run import Load, Run


@dataclass(frozen=True, slots=True, eq=False)
class TabledRun:
    """A run, or the part of it at one load, with the table of its records."""

    run: Run
    """The header and the records."""
    table: RecordTable
    """The records as columns."""


def tabled(run: Run) -> TabledRun:
    """Make the table of a run's records."""
    header = run.header
    table = make_table(run.records, run.run_of_repeat, header.blocks, header.copied_prompts)
    return TabledRun(run, table)


@dataclass(frozen=True, slots=True, eq=False)
class RunTables:
    """A run with its table at each load. Each table is made when it is first needed."""

    run: Run
    """The whole run."""
    _by_load: dict[Load, TabledRun] = field(default_factory=dict)

    def at(self, load: Load) -> TabledRun:
        """Return the part of the run at one load, with its table."""
        if load not in self._by_load:
            self._by_load[load] = tabled(self.run.at(load))
        return self._by_load[load]

    @property
    def whole(self) -> TabledRun:
        """The whole run with its table. If the run has a single load, the table is that of `at`."""
        loads = self.run.loads
        return self.at(loads[0]) if len(loads) == 1 else tabled(self.run)
