"""Find the numbers for notes about servers: if they ran together, their memory and energy."""

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.server_use import served_joules_per_token, uses_of
from specbench.log.header import RunHeader
from specbench.report.texts import Numbers


def arrangement(info: RunHeader) -> Numbers:
    """Return the way in which servers ran (together or one at a time), and the reasons for it."""
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
    """Return the memory and energy of the servers on this machine for a note.

    `methods` has an entry for each method and temperature with known memory. `memory` and
    `gpu_memory` are the largest numbers of bytes, or None if unknown. `joules` is the energy per
    token without that of an idle server, and may be missing. `meters` are the GPUs and processor
    packages with energy counters. `idle` is the largest power in watts with an idle server, and
    `tick` has the seconds between two changes of the slowest counter. Both are None without
    counters. `absent` has the reasons why energy was not measured.
    """
    methods: list[Numbers] = []
    for method, temperature in run.serving:  # metrics by method and temperature
        # A block is the requests of a method on a task at a temperature and load in one pass.
        blocks = [
            block
            for block in run.info.blocks
            if (block.method, block.temperature) == (method, temperature)
        ]
        uses = uses_of(blocks)  # the memory and energy of the blocks that recorded them
        numbers = {
            "memory": max((use.memory_bytes or 0 for use in uses), default=0) or None,
            "gpu_memory": max((use.gpu_memory_bytes or 0 for use in uses), default=0) or None,
            "joules": served_joules_per_token(blocks),
        }
        if numbers["memory"] or numbers["gpu_memory"]:
            methods.append({"method": method, "temperature": temperature, **numbers})
    all_uses = uses_of(run.info.blocks)
    metered = [use for use in all_uses if use.meters]  # the blocks whose energy was measured
    return {
        "methods": methods,
        "meters": [*dict.fromkeys(meter for use in metered for meter in use.meters)],
        "idle": max((use.idle_w for use in metered), default=None),
        "tick": max((use.tick_s for use in metered), default=None),
        "absent": [*dict.fromkeys(reason for use in all_uses for reason in use.absent)],
    }
