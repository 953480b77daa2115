"""Check that the server of the baseline decodes without drafts.

If the baseline speculates, for example because the labels of two servers were swapped, all speedups
are too small.
"""

from specbench.errors import UserError
from specbench.log.backend import BlockHeader, counted_drafts
from specbench.measure.methods import BASELINE
from specbench.measure.server.stream import Counts


def answer_drafts(counts: Counts) -> int:
    """The largest count of drafts or draft tokens in an answer's counts; 0 without counts."""
    return max(counts.num_drafts or 0, counts.num_drafted or 0, counts.num_accepted or 0)


def refuse_drafts(method: str, num_drafts: int, where: str) -> None:
    """Stop the run if the server of the baseline drafted.

    Args:
        method: the label of the server's method. Only the baseline must not draft.
        num_drafts: the drafts, or draft tokens, that the server counted.
        where: a phrase for the message about the requests with drafts, such as "on gsm8k".

    Raises:
        UserError: the label is the baseline's, and there were drafts.
    """
    if method == BASELINE and num_drafts > 0:
        raise UserError(
            f"The server of {BASELINE} counted {num_drafts} drafts {where}: it must run without "
            "speculation.",
            "Start it without speculation. If the addresses of two servers were swapped, swap "
            "their labels.",
        )


def refuse_drafts_of_block(block: BlockHeader) -> None:
    """Stop the run if the baseline drafted in a block. Raises UserError."""
    refuse_drafts(block.method, counted_drafts(block.counters), f"on {block.task}")
