"""Errors for users: a message with the offending value, and a hint with the fix."""

from collections.abc import Iterable
from copy import copy
from difflib import get_close_matches
from typing import Self


class SpecbenchError(Exception):
    """An error that the user can act on.

    `message` has the offending value and the reason, `hint` the command or change that fixes it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

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

    `num_gpus_needed` counts GPUs like those of the device; 0 on a CPU.
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
    """The code of a method raised something that is no message to users."""


class ContractFault(MethodFault):
    """A draft or a verdict of a method that breaks the contract of methods."""


_MOST_NAMES = 30
"""More available names than these are not listed; the closest ones are."""


def unknown_name(kind: str, name: str, available: Iterable[str], hint: str = "") -> UserError:
    """The error for an unknown name, with the closest match and the available names."""
    names = sorted(available)
    close = get_close_matches(name, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = ""
    if len(names) > _MOST_NAMES:
        names, more = get_close_matches(name, names, n=8, cutoff=0), " and others"
    available = f"Available: {', '.join(names)}{more}." if names else f"No {kind} is available."
    return UserError(f"No {kind} {name!r}.{meant}", f"{available} {hint}".strip())


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
