"""Drop requests of a target that are too short, repeated, or close to a task's prompt."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from specbench.data.prompts import load_prompts
from specbench.data.tasks import load_cards
from specbench.errors import UserError

OVERLAP = 13
"""A request or answer may not share this many words in a row with a prompt of a task."""
_OPENING_WORDS = 3
"""Number of a request's first words that form its opening."""
_OPENING_SHARE = 0.05
"""The largest share of requests that may have the same opening."""
_OPENING_FREE = 2
"""The number of requests that may have the same opening in any case."""
_WORD = re.compile(r"\w+")


def task_prompts() -> tuple[list[str], list[str]]:
    """Return the prompts of all tasks on this machine, and the sources that are not on it."""
    prompts: list[str] = []
    unchecked: list[str] = []
    for card in load_cards().values():
        for source in card.sources:
            try:
                loaded_prompts = load_prompts(card.name, source, offline=True)
                prompts += [turn for prompt in loaded_prompts for turn in prompt.turns]
            except UserError:
                unchecked.append(f"{card.name} ({source})")
    return prompts, unchecked


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower())


def word_runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield every run of `OVERLAP` words of a text in lower case."""
    words = words_of(text)
    starts = range(len(words) - OVERLAP + 1)
    return (tuple(words[start : start + OVERLAP]) for start in starts)


class OwnText:
    """The requests so far, and the rules that a new request has to follow."""

    def __init__(self, avoided: Iterable[str], rows: Iterable[dict[str, Any]] = ()) -> None:
        """`avoided` are the prompts of tasks, and `rows` the dialogues that are written already."""
        self._avoided = {run for prompt in avoided for run in word_runs(prompt)}
        self._seen: set[str] = set()
        self._openings: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        for row in rows:
            self._add(row["request"])
            self.left_out.update(row.get("left_out", {}))

    def takes(self, request: str) -> bool:
        """Add a request and return True if it follows all rules. Else count the broken rule."""
        reason = self._reason_against(request)
        if reason:
            self.left_out[reason] += 1
            return False
        self._add(request)
        return True

    def _reason_against(self, request: str) -> str | None:
        """Return the rule that a request breaks, or None if it follows all."""
        words = words_of(request)
        if len(words) < _OPENING_WORDS:
            return f"requests of fewer than {_OPENING_WORDS} words"
        if " ".join(words) in self._seen:
            return "repeated requests"
        most = max(_OPENING_SHARE * (len(self._seen) + 1), _OPENING_FREE)
        if self._openings[_opening(words)] + 1 > most:
            return "requests with a frequent opening"
        return None

    def overlaps(self, request: str, answer: str) -> bool:
        """Return True if a request or its answer shares a run of words with a task's prompt.

        If so, the dialogue counts as left out, and the request is forgotten.
        """
        runs = (run for text in (request, answer) for run in word_runs(text))
        if not any(run in self._avoided for run in runs):
            return False
        self.left_out[f"dialogues that share {OVERLAP} words with a prompt"] += 1
        self._remove(request)
        return True

    def _add(self, request: str) -> None:
        words = words_of(request)
        self._seen.add(" ".join(words))
        self._openings[_opening(words)] += 1

    def _remove(self, request: str) -> None:
        words = words_of(request)
        self._seen.discard(" ".join(words))
        self._openings[_opening(words)] -= 1


def _opening(words: list[str]) -> str:
    return " ".join(words[:_OPENING_WORDS])
