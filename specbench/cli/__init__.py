"""The command line. `main` is the console script. Each command has its own file.

Importing this package imports no command, so it is cheap to use one of its modules.
"""

import logging
import os
import sys

_DEBUG = "--debug"


def main() -> None:
    """Run the command in `sys.argv` and exit. An error becomes a message and an exit code."""
    from specbench.errors import lasting_interrupts

    try:
        with lasting_interrupts():
            _main()
    except KeyboardInterrupt:  # while modules are imported, or as the program exits
        print("Interrupted.", file=sys.stderr)
        raise SystemExit(130) from None


def _main() -> None:
    """Run the command. If it raises a `SpecbenchError`, print the error and exit with its code."""
    from specbench.machine.threads import wait_briefly

    wait_briefly()
    # transformers imports torchao if it is installed, and torchao reports kernels that it lacks.
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from specbench.cli.app import app
    from specbench.cli.interrupts import Interrupted
    from specbench.cli.streams import check_arguments, checked_streams
    from specbench.errors import SpecbenchError, debug_traceback, terminal_text

    words = sys.argv[1:]
    is_debug = _DEBUG in words or bool(os.environ.get("SPECBENCH_DEBUG"))
    if is_debug:
        logging.getLogger("specbench").setLevel(logging.DEBUG)
    try:
        with checked_streams():
            check_arguments(words)
            app([word for word in words if word != _DEBUG], prog_name="specbench")
    except SpecbenchError as error:
        from specbench.report.console import wrapped

        print(debug_traceback(error), end="", file=sys.stderr)
        message = error.message
        if not isinstance(error, Interrupted):
            message = f"Error: {message}"
        if error.hint:
            message = f"{message}\n{error.hint}"
        print(wrapped(terminal_text(message), sys.stderr), file=sys.stderr)
        raise SystemExit(error.exit_code) from None
