"""Load on a server: requests that follow each other, or that come at random times."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


async def closed_loop(
    items: Sequence[T], concurrency: int, work: Callable[[T], Awaitable[None]]
) -> None:
    """Work on `concurrency` items at once. When one is done, the next one begins."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(items))):
            group.create_task(worker())


async def at_rate(
    items: Sequence[T], rate: float, seed: int, work: Callable[[T], Awaitable[None]]
) -> None:
    """Begin `rate` items per second on average, without waiting for earlier ones to finish.

    The times between them are exponential (a Poisson process), drawn with the seed.
    """
    draws, began, due_s = random.Random(seed), perf_counter(), 0.0
    async with asyncio.TaskGroup() as group:
        for item in items:
            due_s += draws.expovariate(rate)
            await asyncio.sleep(max(0.0, began + due_s - perf_counter()))
            group.create_task(work(item))  # type: ignore[arg-type]  # a coroutine
