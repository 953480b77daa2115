"""Family `gsm8k`: word problems of two to four steps, solved step by step with the right answer.

Every step is written as `a op b = c`, so that an answer can be checked by recomputing it.
"""

import random
from collections.abc import Callable

from specbench.zoo.text.arithmetic_amounts import (
    boxes_problem,
    compared_problem,
    running_problem,
    shared_problem,
)
from specbench.zoo.text.arithmetic_rates import (
    earning_problem,
    journey_problem,
    shopping_problem,
    weekly_problem,
)
from specbench.zoo.text.dialogue import Dialogue, Turn


def sample_arithmetic(rng: random.Random) -> Dialogue:
    """One word problem with its solution."""
    make: Callable[[random.Random], Turn] = rng.choices(
        (
            running_problem,
            boxes_problem,
            shopping_problem,
            earning_problem,
            journey_problem,
            compared_problem,
            shared_problem,
            weekly_problem,
        ),
        (5, 3, 3, 2, 2, 3, 2, 2),
    )[0]
    return Dialogue("gsm8k", "math", (make(rng),))
