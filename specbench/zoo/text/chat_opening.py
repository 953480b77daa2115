"""What the first turn of a chat leaves to the second."""

import random
from dataclasses import dataclass

from specbench.zoo.text.dialogue import Turn
from specbench.zoo.text.grammar import render


@dataclass(frozen=True, slots=True)
class Opening:
    """The first turn of a chat, with the points a follow-up can work on.

    `about` completes "the main points about ...". `points` are whole clauses without a full stop.
    """

    category: str
    turn: Turn
    about: str
    points: tuple[str, ...]


def say(rng: random.Random, texts: tuple[str, ...]) -> list[str]:
    """Every text with its choices made."""
    return [render(rng, text) for text in texts]
