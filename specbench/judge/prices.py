"""Prices per hour of machines, as they are given on the command line."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from specbench.errors import UserError, unknown_name


def parse_prices(texts: Sequence[str], machines: Collection[str]) -> dict[str, float]:
    """The price per hour of each machine named: "NVIDIA H100=2.5".

    Raises:
        UserError: no run is of that machine, or the price is not a positive number.
    """
    prices: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not name or not 0 < price < math.inf:
            raise UserError(
                f"--price {text}: {number!r} is not a price.", 'Write --price "NAME=2.5".'
            )
        if name not in machines:
            raise unknown_name("machine", name, machines, "Prices are of machines of the runs.")
        prices[name] = price
    return prices
