"""Run a command, and end it with all its descendants when the program that started it is gone.

`python keeper.py LOG COMMAND...`: standard input is a pipe that the other program holds open. When
it is closed, by that program or by the system after the program was killed, everything that was
started is ended. This script runs by itself, so it imports nothing from the package.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import psutil

WAIT_S = 10.0
"""Seconds that processes may take to end. Then they are killed."""
_POLL_S = 0.02
"""Seconds between two checks for ended processes."""


def main() -> int:
    """Run the command. Returns its exit status, 1 if it was ended, or 127 if it did not start.

    This script's first argument is the file for the command's output. The others are the command.
    A signal, or the end of standard input, ends the command.
    """
    stop = threading.Event()  # set when the command is to end
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, lambda _number, _frame: stop.set())
    with open(sys.argv[1], "ab") as log:  # noqa: PTH123  # bytes, appended
        try:
            child = subprocess.Popen(
                sys.argv[2:],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            log.write(f"{sys.argv[2]} cannot be started: {error}\n".encode())
            return 127  # as a shell does
    # Sets `stop` at the end of standard input.
    threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    while child.poll() is None and not stop.wait(_POLL_S):
        pass
    status = child.poll()  # None if it still runs
    end_all(child.pid)  # with the processes that it started
    return 1 if status is None else status


def end_all(child_pid: int) -> None:
    """End a child process with its descendants and its process group.

    The child, which leads the group, is the only child of this process. Processes that do not end
    within WAIT_S seconds are killed.
    """
    processes = psutil.Process().children(recursive=True)  # the child and its descendants
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended already
            process.terminate()
    deadline = time.monotonic() + WAIT_S
    while any(map(_is_running, processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    # Descendants whose parent had ended are not in the list, but they are still in the group.
    with contextlib.suppress(OSError):  # the group is empty
        os.killpg(child_pid, signal.SIGKILL)


def _is_running(process: psutil.Process) -> bool:
    """True if a process runs. A zombie has ended: only its status has not been read yet."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _wait_for_end_of_input(stop: threading.Event) -> None:
    """Set `stop` when the program that holds the other end of the pipe is gone."""
    while os.read(0, 4096):  # sys.stdin would hold a lock when the interpreter ends
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
