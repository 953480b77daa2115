"""Errors for users: a message with the offending value, and a hint with the fix."""

from collections.abc import Iterable
from copy import copy
from difflib import get_close_matches
from typing import Self

from specbench.errors.safe_text import without_password

_MOST_NAMES = 30
"""The largest number of available names that a message lists. If there are more, it lists only the
closest ones.
"""
_OTHER_NAMES = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
}
"""Names that other programs use -> our names."""
_NO_SEPARATORS = str.maketrans("", "", "-_ ")
"""Translation table that removes the separators, which people write differently in names."""


class SpecbenchError(Exception):
    """An error that the user can act on.

    `message` has the offending value and the reason.
    `hint` is the command or the change that fixes it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        message = without_password(message)
        super().__init__(message)
        self.message = message
        self.hint = without_password(hint)

    def at(self, place: str) -> Self:
        """A copy of the error whose message begins with the place where it was raised."""
        located = copy(self)
        located.message = f"On {place}: {self.message}"
        located.args = (located.message,)
        return located


class UserError(SpecbenchError):
    """A wrong name, value, file or folder. The command exits with code 2."""

    exit_code = 2


class TooLarge(UserError):
    """A model that needs more memory than a device has free.

    `num_gpus_needed` is the number of GPUs of the device's kind that the model needs, or 0 on a
    CPU.
    """

    def __init__(self, message: str, hint: str = "", *, num_gpus_needed: int = 0) -> None:
        super().__init__(message, hint)
        self.num_gpus_needed = num_gpus_needed


class CheckpointError(UserError):
    """A checkpoint that is missing, truncated, of the wrong shape or unsupported."""


class RunFolderError(UserError):
    """A run folder that cannot be read or written, is in use, or has a newer schema."""


class ClockError(UserError):
    """A clock of this machine went back or stood still during a measurement."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, "Stop programs that set this machine's clock, then measure again."
        )


def checked_seconds(seconds: float, what: str) -> float:
    """Return `seconds`, the time that `what` took, if it is positive.

    Raises:
        ClockError: the time is zero or negative, so the clock stood still or went back.
    """
    if seconds > 0:
        return seconds
    fault = f"went back by {-seconds:.3g} s or more" if seconds else "stood still"
    raise ClockError(f"The clock {fault} during {what}.")


class NonFiniteError(SpecbenchError):
    """Logits of a target or a draft that are NaN or infinite."""


class MethodFault(SpecbenchError):
    """The code of a method raised an error that does not address users."""


class ContractFault(MethodFault):
    """A draft or a verdict of a method that breaks the contract of methods."""


def same_name(name: str, available: Iterable[str]) -> str:
    """Return the available name that differs from `name` only in case, hyphens, underscores and
    spaces, such as "EAGLE-2" for "eagle2". Return `name` itself if there is no such name, or if
    there are several.
    """
    names = {*available}
    if name in names:
        return name
    same_names = [known_name for known_name in names if _folded(known_name) == _folded(name)]
    return same_names[0] if len(same_names) == 1 else name


def _folded(name: str) -> str:
    return name.casefold().translate(_NO_SEPARATORS)


def _closest(name: str, names: list[str]) -> list[str]:
    """A list with the name closest to a misspelt one, or an empty list if no name is close."""
    return get_close_matches(name, names, n=1) or get_close_matches(name.lower(), names, n=1)


def unknown_name(
    kind: str, name: str, available: Iterable[str], hint: str = "", of: str = ""
) -> UserError:
    """The error for an unknown name. It lists the available names, and suggests the closest one.
    `of` is what the names belong to, such as a method.
    """
    names = sorted(available)
    meant = _OTHER_NAMES.get(name.lower())
    closest = [meant] if meant in names else _closest(name, names)
    question = f" Did you mean {closest[0]!r}?" if closest else ""
    if not names:
        listing = f"No {kind} is available."
    elif len(names) > _MOST_NAMES:
        similar_names = get_close_matches(name, names, n=8, cutoff=0)
        listing = f"Available: {', '.join(similar_names)} and others."
    else:
        listing = f"Available: {', '.join(names)}."
    owner = f" of {of}" if of else ""
    return UserError(f"No {kind} {name!r}{owner}.{question}", f"{listing} {hint}".strip())
