"""Reachability of the Hugging Face Hub, and what its client's errors mean."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from specbench.errors import describe_error

TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class HubFailure:
    """An error of the Hub's client: its classes, HTTP status, errno, and what happened."""

    kinds: tuple[str, ...]
    reason: str
    status: int | None = None
    errno: int | None = None

    @staticmethod
    def of(error: Exception) -> HubFailure:
        return HubFailure(
            kinds=tuple(kind.__name__ for kind in type(error).__mro__),
            reason=failure_reason(error),
            status=getattr(getattr(error, "response", None), "status_code", None),
            errno=error.errno if isinstance(error, OSError) else None,
        )


def is_offline(given: bool = False) -> bool:
    """True if the network must not be used: `given`, or by `HF_HUB_OFFLINE`."""
    return given or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def unreachable(dataset: str) -> Exception | None:
    """The error of asking the Hub about a data set; None if the Hub answers at all."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(dataset, timeout=TIMEOUT_S)
    except HfHubHTTPError:
        return None
    except Exception as error:  # the HTTP clients share no base class for connection errors
        return error
    return None


def is_html(start: bytes) -> bool:
    """True if an answer that starts like this is a web page."""
    return start[:99].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def failure_reason(error: Exception) -> str:
    """A failed call to the Hub as a clause: "the Hub cannot be reached (TimeoutError: ...)"."""
    if isinstance(error, json.JSONDecodeError):
        page = is_html(error.doc[:99].encode("utf-8", "replace"))
        what = "an HTML page, as of a proxy or a login" if page else "not JSON"
        return f"the Hub's answer is {what}"
    reason = describe_error(error)
    if isinstance(error, KeyError | TypeError | AttributeError | AssertionError):
        return f"the Hub's answer is malformed ({reason})"
    if "Consistency check failed" in reason:
        return f"the Hub sent a file of another size than it announced ({reason})"
    return f"the Hub cannot be reached ({reason})"
