"""Topics of everyday talk, each with advice, benefits and drawbacks that fit it."""

from dataclasses import dataclass

from tools.zoo.text.templates import load


@dataclass(frozen=True, slots=True)
class Topic:
    """An activity, and the clauses that can be said about it."""

    name: str
    tips: list[str]
    benefits: list[str]
    drawbacks: list[str]


TOPICS = [Topic(**fields) for fields in load("topics")["topic"]]
