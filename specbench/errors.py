"""The errors a user can meet: one message with the offending value, one hint with the fix."""

from collections.abc import Iterable
from difflib import get_close_matches


class SpecbenchError(Exception):
    """Something went wrong that the user can act on.

    `message` holds the offending value and the reason, `hint` the command or change that fixes it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(SpecbenchError):
    """The user's mistake: a wrong name, value, file or folder. The command exits with 2."""

    exit_code = 2


class CheckpointError(UserError):
    """A model or drafter folder that is missing, truncated, misshapen or of an unsupported kind."""


class RunFolderError(UserError):
    """A run folder that cannot be written, is in use, or was written by a newer version."""


def unknown_name(kind: str, name: str, available: Iterable[str], hint: str = "") -> UserError:
    """The error for a name that is not registered: what was meant, and what there is."""
    names = sorted(available)
    close = get_close_matches(name, names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    listing = f"Available: {', '.join(names)}." if names else f"No {kind} is available."
    return UserError(f"No {kind} {name!r}.{meant}", f"{listing} {hint}".strip())


def reason_of(error: Exception) -> str:
    """The first line of what another library's error says, or the error's name."""
    return str(error).strip().split("\n")[0] or type(error).__name__
