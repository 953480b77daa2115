"""The sampling temperatures that an audit tests: the run's, and raised ones."""

from specbench.audit.recorded import Records
from specbench.log.header import RunHeader

RAISED = 2.0
"""The lowest raised temperature. At lower ones, residuals and bonus tokens are rare."""


def levels(temperature: float) -> tuple[float, ...]:
    """The run's temperature and, if it is above 0, the raised one that is tested too."""
    if not temperature:
        return (temperature,)
    return (temperature, max(RAISED, 1.5 * temperature))


def num_cells(records: Records, header: RunHeader) -> int:
    """The number of pairs of a method and a sampling temperature to test.

    Raised temperatures count too. Servers are tested only at the run's own temperatures above 0.
    """
    return sum(
        len(records_by_method) * (bool(temperature) if header.servers else len(levels(temperature)))
        for temperature, records_by_method in records.items()
    )
