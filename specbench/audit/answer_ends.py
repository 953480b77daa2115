"""The part of a method's contract about the ends of answers."""

from collections.abc import Iterator
from itertools import product

from specbench.audit.drafters import Planted
from specbench.audit.results import counted
from specbench.audit.subject import Subject
from specbench.log.audit import AuditTest

BUDGETS = (1, 2, 3, 7)
"""Short budgets, at which answers must end."""


def ends(subject: Subject) -> Iterator[AuditTest]:  # a method's drafter, target and prompts
    """Answers end at the budget, at an end token, and never after."""
    # prompts with their greedy answers, as token ids
    pairs = [*zip(subject.prompts, subject.answers, strict=True)]
    num_answers = num_wrong = 0  # answers of other lengths than the budget
    for budget, (prompt, answer) in product(BUDGETS, pairs):
        # The method's own drafts, and right tokens in its trees, which go beyond the budget.
        for drafter in (subject.drafter, Planted(subject.drafter, (*prompt, *answer))):
            completion = subject.complete(drafter, prompt, max_new_tokens=budget)
            num_answers += 1
            num_wrong += completion.num_tokens != budget
    yield counted("budget", num=num_answers, num_wrong=num_wrong)
    # Answers that go on after the end token, end without it, or lack a token before it.
    num_answers = num_wrong = 0
    for prompt, answer in pairs:
        # Some token ids of the greedy answer, from a quarter on, are the end token in turn.
        end_ids = {*answer[len(answer) // 4 :: len(answer) // 8]}
        for end_id in end_ids:
            drafter = Planted(subject.drafter, (*prompt, *answer))  # right tokens in its trees
            completion = subject.complete(drafter, prompt, eos_ids=frozenset({end_id}))
            *before, last = completion.token_ids  # the last token id, and those before it
            num_answers += 1
            is_ended = last == end_id and end_id not in before
            num_wrong += not is_ended or subject.is_wrong(prompt, completion.token_ids)
    yield counted("end token", num=num_answers, num_wrong=num_wrong)
