"""Family `humaneval`: Python functions made from parts, with a docstring and true examples.

The examples of the docstring come from the parts' functions and not from the answer's code, so
they check the answer independently.
"""

import random

from specbench.zoo.text.code_lists import (
    number_list_function,
    number_total_function,
    pairs_function,
    word_count_function,
    word_list_function,
)
from specbench.zoo.text.code_loops import (
    digits_function,
    mapping_function,
    search_function,
    up_to_function,
)
from specbench.zoo.text.dialogue import Dialogue


def sample_code(rng: random.Random) -> Dialogue:
    """One function to complete."""
    make = rng.choices(
        (
            number_list_function,
            number_total_function,
            word_list_function,
            word_count_function,
            mapping_function,
            digits_function,
            up_to_function,
            pairs_function,
            search_function,
        ),
        (4, 4, 4, 2, 2, 2, 2, 3, 2),
    )[0]
    return make(rng)
