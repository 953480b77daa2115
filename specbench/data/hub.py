"""Check that the Hugging Face Hub can be reached, and put its client's errors into words."""

import json
import os

from specbench.errors import describe_error

TIMEOUT_S = 15.0
"""Seconds that the Hub may take to answer."""


def is_offline(is_asked: bool = False) -> bool:
    """Return True if the caller or `HF_HUB_OFFLINE` asks not to use the network."""
    return is_asked or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def unreachable(dataset: str) -> Exception | None:
    """Ask the Hub about a data set. Return the error, or None if the Hub answers at all."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(dataset, timeout=TIMEOUT_S)
    except HfHubHTTPError:
        return None
    except Exception as error:  # the HTTP clients share no base class for connection errors
        return error
    return None


def is_html(first_bytes: bytes) -> bool:
    """Return True if an answer that starts with these bytes is a web page."""
    return first_bytes[:99].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def failure_reason(error: Exception) -> str:
    """Describe a failed call to the Hub: "the Hub cannot be reached (TimeoutError: ...)"."""
    if isinstance(error, json.JSONDecodeError):
        if is_html(error.doc[:99].encode("utf-8", "replace")):
            return "the Hub's answer is an HTML page, as from a proxy or a login"
        return "the Hub's answer is not JSON"
    reason = describe_error(error)
    if isinstance(error, KeyError | TypeError | AttributeError | AssertionError):
        return f"the Hub's answer is malformed ({reason})"
    if "Consistency check failed" in reason:
        return f"the Hub sent a file of the wrong size ({reason})"
    return f"the Hub cannot be reached ({reason})"
