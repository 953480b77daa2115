"""The numbers of notes on servers that the run started."""

from specbench.log.header import RunHeader
from specbench.report.texts import Numbers


def arrangement(info: RunHeader) -> Numbers:
    """The turns of the servers, and the memory that decided them."""
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
