"""Family `alpaca`: short instructions of many kinds with short answers."""

import random

from specbench.zoo.text.dialogue import Dialogue, Turn
from specbench.zoo.text.instruct_sentences import correct_task, question_task, tense_task
from specbench.zoo.text.instruct_tasks import (
    classify_task,
    convert_task,
    reasons_task,
    review_task,
    slogan_task,
    sum_task,
    tips_task,
)
from specbench.zoo.text.instruct_words import (
    define_task,
    examples_task,
    odd_one_task,
    opposite_task,
    sort_task,
    synonym_task,
)

_CLOSINGS = (
    "I hope this helps.",
    "Let me know if you need more.",
    "Is there anything else I can do for you?",
    "Feel free to ask for more examples.",
    "You can ask me again at any time.",
)


def sample_instruction(rng: random.Random) -> Dialogue:
    """One instruction with its answer."""
    make = rng.choice(
        (
            examples_task,
            odd_one_task,
            opposite_task,
            synonym_task,
            tense_task,
            correct_task,
            define_task,
            tips_task,
            reasons_task,
            sort_task,
            convert_task,
            slogan_task,
            classify_task,
            question_task,
            sum_task,
            review_task,
        )
    )
    user, answer = make(rng)
    if rng.random() < 0.4 and "\n" not in answer:
        answer += " " + rng.choice(_CLOSINGS)
    return Dialogue("alpaca", "instruction", (Turn(user, answer),))
