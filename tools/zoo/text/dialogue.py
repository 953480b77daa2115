"""Dialogues of user and assistant turns, which are the output of the generator."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and its answer."""

    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One sample, with its family, its category within the family, and its turns in order."""

    family: str
    category: str
    turns: tuple[Turn, ...]
