"""Reachability of the Hugging Face Hub."""

TIMEOUT_S = 15.0


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


def unreachable_reason(error: Exception) -> str:
    """A failed call to the Hub as a clause: "the Hub cannot be reached (TimeoutError: ...)"."""
    lines = str(error).strip().splitlines()
    return f"the Hub cannot be reached ({type(error).__name__}: {lines[0] if lines else '-'})"
