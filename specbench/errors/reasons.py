"""Describe errors that libraries, methods and plug-ins raise."""

import logging
import sys
import traceback
from pathlib import Path

_LIBRARIES = {*sys.stdlib_module_names, "specbench", "torch", "transformers", "numpy"}
"""Top-level modules that are not the code of a plug-in."""


def reason_of(error: BaseException) -> str:
    """The first line of the message of a library's error, or the error's class if it has no
    message.

    The message of a compiler error begins with a place in the source, so `error_message` is used
    instead, or the message of the error's cause.
    """
    message = str(error)
    if hasattr(error, "error_message"):
        if not error.error_message and error.__cause__ is not None:
            return reason_of(error.__cause__)
        message = str(error.error_message or message)
    return message.strip().split("\n")[0] or type(error).__name__


def describe_error(error: BaseException) -> str:
    """The class and first line of an error that is not ours: "KeyError: 'weights'"."""
    name = type(error).__name__
    message = str(error).strip().split("\n")[0]
    return f"{name}: {message}" if message else name


def describe_fault(error: BaseException) -> str:
    """The class and the first line of an error, with the last line of a method or plug-in in its
    traceback, such as "KeyError: 'weights' (my_idea.py:21 in propose)".
    """
    lines_of_methods = [
        f" ({Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_method(frame.f_globals.get("__name__", ""))
    ]
    return describe_error(error) + "".join(lines_of_methods[-1:])


def _is_method(module: str) -> bool:
    return module.startswith("specbench.methods.") or module.partition(".")[0] not in _LIBRARIES


def is_debugging() -> bool:
    """True with --debug."""
    return logging.getLogger("specbench").isEnabledFor(logging.DEBUG)


def debug_traceback(error: BaseException) -> str:
    """The traceback of an error with --debug, else an empty text."""
    return "".join(traceback.format_exception(error)) if is_debugging() else ""
