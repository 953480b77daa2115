"""The numbers for notes about servers: how they took turns, and their memory and energy."""

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.server_use import served_joules_per_token, uses_of
from specbench.log.header import RunHeader
from specbench.report.texts import Numbers


def arrangement(info: RunHeader) -> Numbers:
    """If servers were up together or in turns, and the memory that decided it, for a note."""
    turns = info.arrangement
    if turns is None:
        return {}
    return {
        "way": "together" if turns.is_side_by_side else "turns",
        "needed": turns.needed_bytes or None,
        "free": turns.free_bytes or None,
        "share": turns.gpu_share or None,
        "reason": turns.reason,
    }


def server_use(run: RunMetrics) -> Numbers:
    """Memory and energy of the servers on this machine, and what was not measured, for a note.

    `methods` has an entry per method and temperature whose memory is known: the largest `memory`
    and `gpu_memory` in bytes, None if unknown, and `joules` per token without an idle server's,
    which may be missing. `meters` are the GPUs and processor packages with energy counters. `idle`
    is their largest power in watts with an idle server, and `tick` the seconds between two changes
    of the slowest counter; both are None without counters. `absent` has the reasons why energy was
    not measured.
    """
    methods: list[Numbers] = []
    for method, temperature in run.serving:  # metrics by method and temperature
        # A block is the requests of a method on a task at a temperature and load in one pass.
        blocks = [
            block
            for block in run.info.blocks
            if (block.method, block.temperature) == (method, temperature)
        ]
        uses = uses_of(blocks)  # the memory and energy of each block that recorded them
        numbers = {
            "memory": max((use.memory_bytes or 0 for use in uses), default=0) or None,
            "gpu_memory": max((use.gpu_memory_bytes or 0 for use in uses), default=0) or None,
            "joules": served_joules_per_token(blocks),
        }
        if numbers["memory"] or numbers["gpu_memory"]:
            methods.append({"method": method, "temperature": temperature, **numbers})
    all_uses = uses_of(run.info.blocks)
    metered = [use for use in all_uses if use.meters]  # those whose energy was measured
    return {
        "methods": methods,
        "meters": [*dict.fromkeys(meter for use in metered for meter in use.meters)],
        "idle": max((use.idle_w for use in metered), default=None),
        "tick": max((use.tick_s for use in metered), default=None),
        "absent": [*dict.fromkeys(reason for use in all_uses for reason in use.absent)],
    }
