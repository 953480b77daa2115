"""The part of the contract about first drafts: accepted paths do not make them worse."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from specbench.analysis.stats.sign_test import sign_test
from specbench.audit.drafters import Planted
from specbench.audit.subject import Subject
from specbench.log.audit import AuditTest

SHIFTS = (-1, 1)
"""Offsets of token ids that a wrong draft vocabulary may cause."""
NUM_ROUNDS = 3
"""Number of completions of each prompt. Each plants right tokens at different ranks, so that its
steps begin at different positions.
"""


def memory(subject: Subject) -> Iterator[AuditTest]:
    """The first draft level: accepted paths do not make it worse, and token ids are not shifted.

    A drafter whose cache is wrong after an accepted path still drafts, but worse than a fresh
    drafter after the same text. A drafter with a wrong draft vocabulary drafts tokens whose ids are
    next to the right ids. One test checks that the drafter drafts the right token at least as often
    as a fresh drafter. For each shift of ids, another test checks that its first draft token is
    right at least as often as it has the shifted id.
    """
    first_drafts = [*_steps_of_both(subject)]  # one per position
    # True if the right token is among the draft tokens [positions]
    used_hits = [drafts.right in drafts.used for drafts in first_drafts]
    fresh_hits = [drafts.right in drafts.fresh for drafts in first_drafts]
    yield _fewer_hits("hits after accepted paths", used_hits, fresh_hits)
    # Against shifted tokens only the first draft token counts ([:1]).
    right_hits = [drafts.right in drafts.used[:1] for drafts in first_drafts]
    for shift in SHIFTS:
        shifted_hits = [drafts.right + shift in drafts.used[:1] for drafts in first_drafts]
        yield _fewer_hits(f"hits, against ids shifted by {shift}", right_hits, shifted_hits)


class _FirstDrafts(NamedTuple):
    """The first draft tokens (children of the root) of two drafters for one position of a text."""

    right: int
    """Id of the right token: the target's own."""
    used: list[int]
    """Token ids, in tree order, of the drafter that reached the position by accepted paths."""
    fresh: list[int]
    """Token ids, in tree order, of a drafter that has just started on the same text."""


def _steps_of_both(subject: Subject) -> Iterator[_FirstDrafts]:
    """Yield, for each position, the first draft tokens of a used drafter and of a fresh one.

    The used drafter completes each prompt with right tokens planted in its trees, so that it
    reaches later steps by accepted paths. For each of these steps, another drafter of the method
    starts on the text before the step.
    """
    fresh_drafter = subject.build()
    prompts_and_answers = zip(subject.prompts, subject.answers, strict=True)
    for (prompt, answer), first_step in product(prompts_and_answers, range(NUM_ROUNDS)):
        right_ids = (*prompt, *answer)  # answer: the target's greedy one
        # `first_step` changes the ranks at which right tokens are planted.
        used_planted = Planted(subject.drafter, right_ids, first_step)
        subject.complete(used_planted, prompt)
        # position in right_ids -> the first draft tokens of the step that begins there
        for position, used_ids in used_planted.first_drafts.items():
            # Skip the first step, where the used drafter has just started too, and the end of the
            # text, where no right token is known.
            if not len(prompt) + 1 < position < len(right_ids):
                continue
            fresh_planted = Planted(fresh_drafter, right_ids)
            # The prefill emits the token before the position. With a budget of three tokens, the
            # step that follows still drafts.
            subject.complete(fresh_planted, right_ids[: position - 1], max_new_tokens=3)
            if position in fresh_planted.first_drafts:
                yield _FirstDrafts(
                    right=right_ids[position],
                    used=used_ids,
                    fresh=fresh_planted.first_drafts[position],
                )


def _fewer_hits(name: str, hits: Sequence[bool], other_hits: Sequence[bool]) -> AuditTest:
    """Test that `hits` are at least as frequent as `other_hits` [positions], by a sign test.

    A hit is a position at which the right token was drafted. The effect is the share of positions
    that are hits only in `other_hits`, minus the share that are hits only in `hits`.
    """
    pairs = [*zip(hits, other_hits, strict=True)]
    num_lost = sum(is_other_hit and not is_hit for is_hit, is_other_hit in pairs)
    num_won = sum(is_hit and not is_other_hit for is_hit, is_other_hit in pairs)
    share_lost = (num_lost - num_won) / max(len(hits), 1)
    p_value = sign_test(num_lost, num_won)
    return AuditTest("guesses", name, len(hits), share_lost, "hits lost", p_value)
