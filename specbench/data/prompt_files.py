"""The prompt file format: one JSON object a line, with `turns` or `prompt`.

Reports every mistake with file, line and reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from specbench.errors import UserError, os_errors, printable

_HINT = (
    'A line looks like {"question_id": 1, "category": "math", "turns": ["first user turn"]}; '
    "only `turns` (or a `prompt` string) is required. The file must be UTF-8."
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sample: the user's turns, in order. `sample_id` is "task/question_id"."""

    sample_id: str
    category: str
    turns: tuple[str, ...]


class _Line(Struct):
    """The keys of a line that are read."""

    question_id: int | str | None = None
    category: str | None = None
    turns: tuple[str, ...] = ()
    prompt: str = ""


def parse_prompts(path: Path, task: str) -> tuple[Prompt, ...]:
    """All prompts of a file in order, with ids prefixed by `task`.

    Raises:
        UserError: the file is unreadable or empty, or a line is broken (the first one is named).
    """
    with os_errors(f"Prompt file {path} cannot be read", "Check its path and permissions."):
        data = path.read_bytes()
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for number, line in _lines(data):
        try:
            question_id, category, turns = _parse_line(line, number)
            if first := lines.get(question_id):
                raise ValueError(f"question_id {question_id!r} is already used in line {first}")
        except (ValueError, RecursionError) as error:  # msgspec's too
            raise UserError(f"Prompt file {path}, line {number}: {error}.", _HINT) from error
        lines[question_id] = number
        prompts.append(Prompt(f"{task}/{question_id}", category, turns))
    if not prompts:
        raise UserError(f"Prompt file {path} is empty.", _HINT)
    return tuple(prompts)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank. Only \\n ends a line: articles contain U+2028."""
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _parse_line(line: bytes, number: int) -> tuple[str, str, tuple[str, ...]]:
    """The id, category and turns in a line. Raises ValueError for a mistake in it."""
    row = msgspec.json.decode(line, type=_Line)
    if bool(row.turns) == bool(row.prompt):
        raise ValueError("it needs `turns` or `prompt`, one of them, and not empty")
    turns = row.turns or (row.prompt,)
    question_id = str(number if row.question_id is None else row.question_id)
    named = {"`question_id`": question_id, **{f"turn {i}": one for i, one in enumerate(turns, 1)}}
    for name, text in named.items():
        if not text.strip():
            raise ValueError(f"{name} is empty")
    return printable(question_id), row.category or "", turns
