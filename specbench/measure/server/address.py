"""Read the addresses and keys of servers, and keep passwords and keys out of files and messages."""

import os

from specbench.errors import UserError

API_KEY = "SPECBENCH_API_KEY"
"""The environment variable with the key that a server asks for."""
_LEAST_KEY = 8
"""Only keys with at least this many characters are replaced in texts. Shorter keys may be common
words.
"""


def server_root(url: str) -> str:
    """The address of a server, without "/" or "/v1" at its end.

    `url` is the text that the user gave for --url. It gets "http://" if it has no scheme.

    Raises:
        UserError: `url` is not an HTTP address, or has a user, a password, a query or a fragment.
    """
    from urllib.parse import urlsplit

    try:
        address = urlsplit(url if "://" in url else f"http://{url}")
        is_address = address.scheme in ("http", "https") and bool(address.hostname)
        _ = address.port  # raises ValueError if the port is not a number
    except ValueError:
        is_address = False
    if "@" in url or "?" in url or "#" in url:  # a user or password, a query, a fragment
        raise UserError(
            "--url has a user, a password or a key, which the files of the run would show.",
            f"Give the address alone, and set the environment variable {API_KEY} to the key, "
            "or to the whole value of the header Authorization.",
        )
    if not is_address:
        raise UserError(
            f"--url {url} is not the address of a server.",
            "Give one such as http://127.0.0.1:8000.",
        )
    # The user may give the API's path "/v1" too, but requests add it. Other paths stay.
    path = address.path.rstrip("/").removesuffix("/v1")
    return f"{address.scheme}://{address.netloc}{path}"


def authorization() -> dict[str, str]:
    """The Authorization header; empty without a key. A single word is sent as a bearer token."""
    key = os.environ.get(API_KEY, "")
    if not key:
        return {}
    return {"Authorization": key if " " in key else f"Bearer {key}"}


def without_key(text: str) -> str:
    """A server's text, with the key replaced if the server sent it back."""
    for word in os.environ.get(API_KEY, "").split():
        if len(word) >= _LEAST_KEY:
            text = text.replace(word, "***")
    return text
