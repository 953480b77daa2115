"""The part of a method's contract that tests where answers end."""

from collections.abc import Iterator
from itertools import product

from specbench.audit.drafters import Planted
from specbench.audit.results import counted
from specbench.audit.subject import Subject
from specbench.log.audit import AuditTest

BUDGETS = (1, 2, 3, 7)
"""Short budgets, in tokens, at which answers must end."""


def ends(subject: Subject) -> Iterator[AuditTest]:
    """Answers end at the budget or at an end token, whichever comes first.

    Two tests count the method's wrong answers, one for the budget and one for the end token.
    `Planted` puts right tokens into the method's trees, some of them beyond the end of the answer.
    """
    prompts_and_answers = [*zip(subject.prompts, subject.answers, strict=True)]
    num_answers = num_wrong = 0  # wrong: answers with fewer or more tokens than the budget
    for budget, (prompt, answer) in product(BUDGETS, prompts_and_answers):
        for drafter in (subject.drafter, Planted(subject.drafter, (*prompt, *answer))):
            completion = subject.complete(drafter, prompt, max_new_tokens=budget)
            num_answers += 1
            num_wrong += completion.num_tokens != budget
    yield counted("budget", num=num_answers, num_wrong=num_wrong)
    # An answer is wrong if it does not end with the end token, goes on after it, or has a token
    # that is not the target's best (`is_wrong`).
    num_answers = num_wrong = 0
    for prompt, answer in prompts_and_answers:
        # About six tokens of the greedy answer serve as the end token, one per completion.
        end_ids = {*answer[len(answer) // 4 :: len(answer) // 8]}
        for end_id in end_ids:
            drafter = Planted(subject.drafter, (*prompt, *answer))
            completion = subject.complete(drafter, prompt, eos_ids=frozenset({end_id}))
            *earlier_ids, last_id = completion.token_ids
            num_answers += 1
            is_ended = last_id == end_id and end_id not in earlier_ids
            num_wrong += not is_ended or subject.is_wrong(prompt, completion.token_ids)
    yield counted("end token", num=num_answers, num_wrong=num_wrong)
