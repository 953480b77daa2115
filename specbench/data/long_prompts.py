"""Long prompts of a given number of tokens, cut from a text file (`--pad-to`)."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.data.prompt_files import Prompt
from specbench.data.prompts import SOURCES, PromptSet, own_file
from specbench.data.tasks import Task
from specbench.errors import UserError, printable

INSTRUCTION = "Summarize: "
"""Text before each part of the file, as in CNN/DM."""
MOST_PROMPTS = 8
"""Prompts of each length without `--limit`."""

CountTokens = Callable[[str], int]
"""Number of tokens of the prompt for a user's text, with its chat template."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text file in UTF-8, and the sha256 of its bytes."""

    path: Path
    text: str
    sha256: str

    def task(self, size: int) -> Task:
        """The task of its prompts of `size` tokens."""
        name = printable(self.path.stem)
        return Task(name=f"{name}/{size}", title=f"{name}, {size:,} tokens")


def read_text(source: str) -> TextFile:
    """The text file that `--prompts source` names.

    Raises:
        UserError: it is one of the named sources, a prompt file, or cannot be read as text.
    """
    if source in SOURCES or Path(source).suffix == ".jsonl":
        raise UserError(
            f"--pad-to needs a text file, and --prompts {source} has prompts of its own.",
            "Give --prompts the path of a text file, such as book.txt, or leave --pad-to out.",
        )
    path = own_file(source)
    try:
        data = path.read_bytes()
        return TextFile(path, data.decode("utf-8-sig"), hashlib.sha256(data).hexdigest())
    except OSError as error:
        message = f"The text file {path} cannot be read: {error.strerror}."
        raise UserError(message, "Check its path and permissions.") from error
    except UnicodeDecodeError as error:
        message = f"The text file {path} is not UTF-8 (byte {error.start + 1})."
        raise UserError(message, "Convert it, or give another file.") from error


def long_prompt_sets(
    file: TextFile, sizes: Sequence[int], count_tokens: CountTokens, limit: int | None
) -> tuple[PromptSet, ...]:
    """A task for each size: `limit` prompts, or `MOST_PROMPTS`, or as many as the text gives.

    Prompts are consecutive parts of the text. Each has as many whole words as fit into its
    number of tokens, chat template included.

    Raises:
        UserError: the text is too short for one prompt, or the template alone for its size.
    """
    return tuple(_prompt_set(file, size, count_tokens, limit) for size in sizes)


def _prompt_set(
    file: TextFile, size: int, count_tokens: CountTokens, limit: int | None
) -> PromptSet:
    task = file.task(size)
    found: list[Prompt] = []
    for text in _texts(file.text, size, count_tokens):
        found.append(Prompt(f"{task.name}/{len(found) + 1}", "", (text,)))
        if len(found) == (limit or MOST_PROMPTS):
            break
    if not found:
        whole = count_tokens(INSTRUCTION + file.text)
        raise UserError(
            f"No prompt of {size} tokens can be cut from {file.path}: all of it gives {whole}.",
            "Give a longer text, or another --pad-to.",
        )
    origin = f"{file.path.name}, {size} tokens"
    return PromptSet(task, "file", origin, file.sha256, len(found), tuple(found))


def _texts(text: str, size: int, count_tokens: CountTokens) -> Iterator[str]:
    """Consecutive prompts of `size` tokens. The rest at the end, which is shorter, is left out."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    start = first = 0  # a character, and the word that follows it

    def tokens_up_to(end: int) -> int:
        return count_tokens(INSTRUCTION + text[start:end].strip())

    while first < len(ends):
        # A word has one token at least.
        last = bisect_right(ends, size, first, min(first + size, len(ends)), key=tokens_up_to)
        if last == first or last == len(ends):
            return
        yield INSTRUCTION + text[start : ends[last - 1]].strip()
        start, first = ends[last - 1], last
