"""The contract's test of first drafts: are they still good after accepted paths?"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from specbench.analysis.stats.sign_test import sign_test
from specbench.audit.drafters import Planted
from specbench.audit.subject import Subject
from specbench.log.audit import AuditTest

SHIFTS = (-1, 1)
"""Distances by which a wrong draft vocabulary may move its tokens."""
NUM_ROUNDS = 3
"""Runs of each prompt with right tokens planted at other ranks, so that steps begin elsewhere."""


def memory(subject: Subject) -> Iterator[AuditTest]:
    """The first draft level: as good after accepted paths as from a fresh start, and not shifted.

    A drafter whose cache is wrong after an accepted path still drafts, but worse than a fresh one
    after the same text. A drafter with a wrong draft vocabulary hits neighbours of the right
    tokens. The subject is the method under test, with its target and prompts. A hit is a right
    token among the draft tokens; a test fails if the first list has fewer hits than the second.
    """
    # At each position of the text: the target's own next token (`right`), and the first draft
    # tokens of a drafter that went on (`used`) and of a fresh one, in the order of their trees.
    first_drafts = [*_steps_of_both(subject)]
    used_hits = [drafts.right in drafts.used for drafts in first_drafts]  # [positions], as all
    fresh_hits = [drafts.right in drafts.fresh for drafts in first_drafts]
    yield _fewer_hits("guesses after accepted paths", used_hits, fresh_hits)
    # Only the best draft token of a position counts. A shift is added to the right token's id.
    right_hits = [drafts.right in drafts.used[:1] for drafts in first_drafts]
    for shift in SHIFTS:
        shifted_hits = [drafts.right + shift in drafts.used[:1] for drafts in first_drafts]
        yield _fewer_hits(f"guesses against those shifted by {shift}", right_hits, shifted_hits)


class _FirstDrafts(NamedTuple):
    """The first draft tokens of two drafters for one position."""

    right: int
    """The right token there."""
    used: list[int]
    """Draft tokens of the drafter that reached the position over accepted paths."""
    fresh: list[int]
    """Draft tokens of a drafter that started on the same text."""


def _steps_of_both(subject: Subject) -> Iterator[_FirstDrafts]:
    """First drafts at the steps of a used drafter, each with the first drafts of a fresh start.

    Both drafters are the method's own, wrapped so that right tokens are planted in their trees:
    the drafter that all tests of the subject share, and a new one, which starts anew at each
    position.
    """
    fresh_drafter = subject.build()
    pairs = zip(subject.prompts, subject.answers, strict=True)
    for (prompt, answer), first_step in product(pairs, range(NUM_ROUNDS)):
        right_ids = (*prompt, *answer)  # token ids of the prompt and its greedy answer
        # `first_step` shifts the ranks at which right tokens are planted.
        used_planted = Planted(subject.drafter, right_ids, first_step)
        subject.complete(used_planted, prompt)
        # Position in right_ids -> the own draft tokens of the step that begins there.
        for position, used_drafts in used_planted.first_drafts.items():
            # At the first step, after the prefill's token, the used drafter has just started, too.
            # At the end there is no right token to draft.
            if not len(prompt) + 1 < position < len(right_ids):
                continue
            fresh_planted = Planted(fresh_drafter, right_ids)
            # The prefill gives the token before the position; three leave a step room to draft.
            subject.complete(fresh_planted, right_ids[: position - 1], max_new_tokens=3)
            if position in fresh_planted.first_drafts:
                yield _FirstDrafts(
                    right=right_ids[position],
                    used=used_drafts,
                    fresh=fresh_planted.first_drafts[position],
                )


def _fewer_hits(name: str, hits: Sequence[bool], other_hits: Sequence[bool]) -> AuditTest:
    """A sign test of "there are fewer hits than the others"."""
    pairs = [*zip(hits, other_hits, strict=True)]
    num_lost = sum(is_other and not is_hit for is_hit, is_other in pairs)
    num_won = sum(is_hit and not is_other for is_hit, is_other in pairs)
    share_lost = (num_lost - num_won) / max(len(hits), 1)
    p_value = sign_test(num_lost, num_won)
    return AuditTest("guesses", name, len(hits), share_lost, "hits lost", p_value)
