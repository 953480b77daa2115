"""Errors for users, and defences against what comes from outside.

An error has a message with the offending value, and a hint with the fix. The defences are text
that is safe to print, a limit on the time of foreign code, and readers that name a broken
file.
"""

import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any, Self

_MOST_NAMES = 30
"""Most available names that are listed. Of more names, the closest ones are."""
_LIBRARIES = {*sys.stdlib_module_names, "specbench", "torch", "transformers", "numpy"}
_LEADING_COLONS = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
_COMMAND = "##["
"""Begins a command of GitHub Actions anywhere in a line; "::" does so at its start."""
_PASSWORD = re.compile(r"(?<=://)[^/\s@]+@")


class SpecbenchError(Exception):
    """An error that the user can act on.

    `message` has the offending value and the reason, `hint` the command or change that fixes it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        message = without_password(message)
        super().__init__(message)
        self.message = message
        self.hint = without_password(hint)

    def at(self, place: str) -> Self:
        """The same error with the place where it was raised before its message."""
        located = copy(self)
        located.message = f"On {place}: {self.message}"
        located.args = (located.message,)
        return located


class UserError(SpecbenchError):
    """A wrong name, value, file or folder. The command exits with code 2."""

    exit_code = 2


class TooLarge(UserError):
    """A model that needs more memory than a device has free.

    `num_gpus_needed` counts GPUs of the device's kind; 0 on a CPU.
    """

    def __init__(self, message: str, hint: str = "", *, num_gpus_needed: int = 0) -> None:
        super().__init__(message, hint)
        self.num_gpus_needed = num_gpus_needed


class CheckpointError(UserError):
    """A checkpoint that is missing, truncated, of the wrong shape or unsupported."""


class RunFolderError(UserError):
    """A run folder that cannot be read or written, is in use, or has a newer schema."""


class NonFiniteError(SpecbenchError):
    """Logits of a target or a draft that are NaN or infinite."""


class MethodFault(SpecbenchError):
    """The code of a method raised an error that does not address users."""


class ContractFault(MethodFault):
    """A draft or a verdict of a method that breaks the contract of methods."""


def unknown_name(
    kind: str, name: str, available: Iterable[str], hint: str = "", of: str = ""
) -> UserError:
    """The error for an unknown name `of` something, with the closest and the available names."""
    names = sorted(available)
    close = get_close_matches(name, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = ""
    if len(names) > _MOST_NAMES:
        names, more = get_close_matches(name, names, n=8, cutoff=0), " and others"
    available = f"Available: {', '.join(names)}{more}." if names else f"No {kind} is available."
    text = f"No {kind} {name!r}{of and f' of {of}'}.{meant}"
    return UserError(text, f"{available} {hint}".strip())


def reason_of(error: BaseException) -> str:
    """First line of another library's error message, or the error's class name.

    A compiler error states the place first; `error_message`, its own or its cause's, is the reason.
    """
    text = str(error)
    if hasattr(error, "error_message"):
        if not error.error_message and error.__cause__ is not None:
            return reason_of(error.__cause__)
        text = str(error.error_message or text)
    return text.strip().split("\n")[0] or type(error).__name__


def describe_error(error: BaseException) -> str:
    """The class and first line of an error that is not ours: "KeyError: 'weights'"."""
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def describe_fault(error: BaseException) -> str:
    """The error as above, and the last line of a method's or plug-in's code that it passed:
    "KeyError: 'weights' (my_idea.py:21 in propose)".
    """
    places = [
        f" ({Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_method(frame.f_globals.get("__name__", ""))
    ]
    return describe_error(error) + "".join(places[-1:])


def _is_method(module: str) -> bool:
    return module.startswith("specbench.methods.") or module.partition(".")[0] not in _LIBRARIES


def is_debugging() -> bool:
    """True with --debug."""
    return logging.getLogger("specbench").isEnabledFor(logging.DEBUG)


def debug_traceback(error: BaseException) -> str:
    """The traceback, if --debug asks for it; else empty."""
    return "".join(traceback.format_exception(error)) if is_debugging() else ""


_UNSEEN = {
    **{code: 0x2400 + code for code in range(0x20)},  # the picture of the control character
    0x7F: 0x2421,
    **dict.fromkeys(
        [*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF, *range(0x202A, 0x202F),
         *range(0x2066, 0x206A), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF],
        0xFFFD,
    ),
}  # fmt: skip
"""Control characters, marks that reorder text and invalid code points, with visible signs."""
_PROSE = {code: sign for code, sign in _UNSEEN.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The text on one line, with control characters as visible signs: "␛" for an escape."""
    shown = text if text.isprintable() else text.translate(_UNSEEN)
    return shown.replace(_COMMAND, "## [")


def without_password(text: str) -> str:
    """The text without users and passwords in its addresses."""
    return _PASSWORD.sub("***@", text) if "@" in text else text


def printable_values(value: Any) -> Any:
    """The value with every text in it on one line, without control characters and passwords."""
    if isinstance(value, str):
        return without_password(printable(value))
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    return [*map(printable_values, value)] if isinstance(value, list) else value


def first_line(text: str, most: int = 160) -> str:
    """The first line of a text without control characters, cut to `most` characters."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return cut("".join(sign if sign.isprintable() else " " for sign in line).strip(), most)


def cut(text: str, most: int) -> str:
    """The text, or its start with "…" if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def few(items: Sequence[str], most: int = 3) -> str:
    """The first items, and the number of the others: "a, b, c and 4 more"."""
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest


def visible(text: str) -> str:
    """The text with control characters as visible signs; its length and lines stay."""
    shown = text.translate(_PROSE).replace(_COMMAND, "##\uff3b")
    return _LEADING_COLONS.sub("\\1\ua789", shown)


def terminal_text(text: str) -> str:
    """Text of several lines for a terminal or the log of a CI system: no line is a command."""
    shown = "\n".join(map(printable, text.split("\n")))
    is_ci = os.environ.get("GITHUB_ACTIONS") == "true"
    return shown.replace("::", "\ua789\ua789") if is_ci else shown


class _TimedOut(BaseException):
    """Not an Exception, so that the code that is interrupted does not handle it."""


@contextmanager
def time_limit(seconds: float, what: str, hint: str = "") -> Iterator[None]:
    """Interrupt the block if it takes longer.

    Only the main thread can be interrupted, on systems with SIGALRM. Elsewhere there is no limit.

    Raises:
        UserError: `what` took longer.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _TimedOut

    previous = signal.signal(signal.SIGALRM, interrupt)
    # Again each second, for code that catches everything.
    outer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    except _TimedOut:
        raise UserError(f"{what} took longer than {seconds:g} s.", hint) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, *outer)


@contextmanager
def memory_limit(more_bytes: int) -> Iterator[None]:
    """Raise MemoryError in the block if it asks for more memory than this. Only on Linux."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        yield
        return
    kept = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + more_bytes
    limits = [one for one in (most, *kept) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, kept)


@contextmanager
def containing(what: str) -> Iterator[None]:
    """Turn whatever a method's code raises into a MethodFault: `what`, and the cause.

    Messages to users and Ctrl-C pass.
    """
    try:
        yield
    except (SpecbenchError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a plug-in can raise anything, and exit
        raise MethodFault(f"{what}: {describe_fault(error)}") from error


@contextmanager
def os_errors(what: str, hint: str = "", kind: type[UserError] = UserError) -> Iterator[None]:
    """Turn an error of the system into one for users: `what` cannot be done, and the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}.", hint) from error


@contextmanager
def reading(file: Path, what: str, hint: str) -> Iterator[None]:
    """Turn any failure to read a file into a CheckpointError that names the file and the reason.

    A damaged or hostile file makes the libraries that read it raise anything.
    """
    try:
        yield
    except SpecbenchError:
        raise
    except Exception as error:
        reason = "not enough memory" if isinstance(error, MemoryError) else reason_of(error)
        raise CheckpointError(f"{what}: {file} cannot be read: {reason}", hint) from error
