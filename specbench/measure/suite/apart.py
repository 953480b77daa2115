"""Complete one run, in this process or in a separate one.

Some effects, such as the place of data in memory, differ only between processes. And a run that
hangs can be ended only if it has a process to itself. That process is `python -m
specbench.measure.suite.apart`: it reads an `Order`, and prints the run's messages. If the run
fails, the last line is the reason.
"""

import math
import signal
import sys
import traceback
from pathlib import Path

import msgspec

from specbench.errors import SpecbenchError, describe_error, lasting_interrupts
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.machine.threads import wait_briefly
from specbench.measure.base import Progress
from specbench.measure.plan import SetupMaker, make_plan
from specbench.measure.run_folder import new_run, resumed_run
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.measure.suite.process import run_tried


class Order(msgspec.Struct, frozen=True):
    """A run to complete in a folder. Records that are already in the folder are not measured
    again.
    """

    spec: RunSpec
    """The options of the run."""
    given: tuple[str, ...]
    """Names of the options that the user gave."""
    path: str
    """The folder of the run."""
    command: tuple[str, ...] = ()
    """Arguments of the command line, for the header."""
    is_forced: bool = False
    """True if parts of the run may be from another machine or other versions."""
    is_offline: bool = False
    """True to use no network."""


def complete(order: Order, progress: Progress, setup_maker: SetupMaker | None = None) -> Run:
    """Measure the missing records of a run in this process, and return the complete run.

    A complete run that has all its records is left unchanged.

    Args:
        order: what to run, and in which folder.
        progress: receives the events of the run.
        setup_maker: makes the setup of a run on other machines; None for a run from this machine.

    Raises:
        SpecbenchError: the run cannot start, or it failed.
    """
    run_folder = Path(order.path)
    is_resumed = (run_folder / HEADER).exists()  # the file run.json
    choose = resumed_run if is_resumed else new_run
    # `chosen.spec` is the spec of the order, or the stored spec of a resumed run. `chosen.given`
    # has the names of the options that the user gave. `root` is not used, as `output` is given.
    chosen = choose(order.spec, order.given, output=run_folder, root=run_folder.parent)
    if is_resumed:
        stored_run = read_run(run_folder)
        num_records = stored_run.header.num_records  # records of the complete run
        if stored_run.header.status == "complete" and len(stored_run.records) == num_records:
            return stored_run
    plan = make_plan(chosen.spec, is_offline=order.is_offline, setup_maker=setup_maker)
    return run_plan(
        plan,
        run_folder,
        progress,
        given=chosen.given,
        command=order.command,
        is_forced=order.is_forced,  # earlier parts may be from another machine or versions
    )


def complete_apart(
    order: Order, progress: Progress, timeout_s: float | None = None, total_s: float = math.inf
) -> None:
    """Complete a run in a separate process, with a second try if there is a timeout.

    A try is stopped after `timeout_s` seconds, and all tries after `total_s` seconds.

    Raises:
        SpecbenchError: the run failed, or the user made a mistake.
    """
    run_tried(
        (sys.executable, "-m", "specbench.measure.suite.apart"),
        progress.message,
        timeout_s=timeout_s,
        total_s=total_s,
        stdin=msgspec.json.encode(order),
    )


def main() -> int:
    """Complete the run of the `Order` on stdin, which is JSON, and return the exit code.

    Prints the run's messages. If the run fails, the last line is the reason.
    """
    wait_briefly()  # before torch is imported: lets idle CPU threads sleep instead of spin
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like Ctrl-C
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    try:
        with lasting_interrupts():  # Ctrl-C ends the run even where Python would ignore it
            complete(order, Progress(print))
    except SpecbenchError as error:
        print(f"{error.message} {error.hint}".strip().replace("\n", " "))
        return error.exit_code
    except KeyboardInterrupt:
        return 130  # the shell's code for Ctrl-C
    except Exception as error:  # raised by a library or a plug-in
        traceback.print_exc()
        print(describe_error(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
