"""Errors for users, and guards against foreign code, files and text."""

from specbench.errors.guards import containing, memory_limit, os_errors, reading, time_limit
from specbench.errors.interrupts import (
    is_interrupt,
    lasting_interrupts,
    send_dropped_interrupts,
)
from specbench.errors.kinds import (
    CheckpointError,
    ClockError,
    ContractFault,
    MethodFault,
    NonFiniteError,
    RunFolderError,
    SpecbenchError,
    TooLarge,
    UserError,
    checked_seconds,
    unknown_name,
)
from specbench.errors.reasons import (
    debug_traceback,
    describe_error,
    describe_fault,
    is_debugging,
    reason_of,
)
from specbench.errors.safe_text import (
    cut,
    few,
    first_line,
    printable,
    printable_values,
    terminal_text,
    visible,
    without_password,
)

__all__ = [
    "CheckpointError",
    "ClockError",
    "ContractFault",
    "MethodFault",
    "NonFiniteError",
    "RunFolderError",
    "SpecbenchError",
    "TooLarge",
    "UserError",
    "checked_seconds",
    "containing",
    "cut",
    "debug_traceback",
    "describe_error",
    "describe_fault",
    "few",
    "first_line",
    "is_debugging",
    "is_interrupt",
    "lasting_interrupts",
    "memory_limit",
    "os_errors",
    "printable",
    "printable_values",
    "reading",
    "reason_of",
    "send_dropped_interrupts",
    "terminal_text",
    "time_limit",
    "unknown_name",
    "visible",
    "without_password",
]
