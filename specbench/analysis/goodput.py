"""Limits of a good request: most seconds of its times.

Goodput is the number of requests per second that keep all limits.
"""

from specbench.errors import UserError

GOODPUT = ("ttft", "tpot", "e2e")
"""Times of a request that may have a limit: to its first token, per token after it, whole."""


def parse_goodput(text: str) -> dict[str, float]:
    """Limits in seconds by name, from "ttft:500,tpot:50" in milliseconds.

    Raises:
        UserError: it has another form.
    """
    limits: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.strip().partition(":")
        try:
            limits[name] = float(number) / 1e3
        except ValueError:
            limits[name] = 0.0
        if name not in GOODPUT or not 0 < limits[name] < float("inf"):
            raise UserError(
                f"--goodput {text} is not a list of limits: {part!r}.",
                f"Give milliseconds by name, such as ttft:500,tpot:50; names are "
                f"{', '.join(GOODPUT)}.",
            )
    return limits
