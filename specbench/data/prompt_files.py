"""Read prompt files, which hold one JSON object per line, with `turns` or `prompt`.

Every mistake is reported with its file, line and reason.
"""

import codecs
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from specbench.errors import UserError, os_errors, printable

_HINT = (
    'A line looks like {"question_id": 1, "category": "math", "turns": ["first user turn"]}; '
    "only `turns` (or a `prompt` string) is required. The file must be UTF-8."
)
_HALF_PAIR = re.compile(rb"\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]..", re.IGNORECASE)
"""The escape of one half of a surrogate pair without the other half."""
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The first bytes of files in UTF-16. Files in UTF-32 begin with them too, or with zeros."""
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
"""The first two bytes of an encoded surrogate, which UTF-8 does not allow."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a task."""

    sample_id: str
    """The prompt's id: "task/question_id"."""
    category: str
    """The prompt's category, or ""."""
    turns: tuple[str, ...]
    """The user's turns, in order."""


class _Line(Struct):
    """The keys of a line that are read."""

    question_id: int | str | None = None
    category: str | None = None
    turns: tuple[str, ...] = ()
    prompt: str = ""


def parse_prompts(path: Path, task: str) -> tuple[Prompt, ...]:
    """Return all prompts of a file in order. Their ids begin with `task`.

    Raises:
        UserError: the file is unreadable or empty, or a line is broken (the first one is named).
    """
    with os_errors(f"Prompt file {path} cannot be read", "Check its path and permissions."):
        data = path.read_bytes()
    if b"\0" in data[:4] or data.startswith(_UTF_16_MARKS):
        raise UserError(
            f"Prompt file {path} is in UTF-16 or UTF-32, not in UTF-8.",
            f"Convert it: iconv -f UTF-16 -t UTF-8 {path.name}",
        )
    prompts: list[Prompt] = []
    line_of_sample: dict[str, int] = {}
    for line_number, line in _numbered_lines(data):
        try:
            prompt = _parse_line(line, line_number, task)
            earlier_line = line_of_sample.get(prompt.sample_id)
            if earlier_line:
                question_id = prompt.sample_id.removeprefix(f"{task}/")
                raise ValueError(
                    f"question_id {question_id!r} is already used in line {earlier_line}"
                )
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            reason = _encoding_problem(line, error) or error
            raise UserError(f"Prompt file {path}, line {line_number}: {reason}.", _HINT) from error
        line_of_sample[prompt.sample_id] = line_number
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"Prompt file {path} is empty.", _HINT)
    return tuple(prompts)


def is_blank(text: str) -> bool:
    """Return True if a text has no visible character, only spaces and the like, such as U+200B."""
    return all(character.isspace() or unicodedata.category(character) == "Cf" for character in text)


def _numbered_lines(data: bytes) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank. Only \\n ends a line, since articles contain U+2028."""
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _encoding_problem(line: bytes, error: Exception) -> str:
    """Return a clause about wrong characters in an unreadable line, or ""."""
    if line.startswith(codecs.BOM_UTF8):
        return "it begins with a byte order mark, as if a file had been appended. Remove the mark"
    escape = _HALF_PAIR.search(line)
    if escape and isinstance(error, msgspec.DecodeError):
        return f"it has a lone surrogate, {escape[0].decode()}, which is half of a character"
    if _SURROGATE.search(line):
        return "it has the bytes of a lone surrogate, which is half of a character"
    return ""


def _parse_line(line: bytes, line_number: int, task: str) -> Prompt:
    """Parse a line. If it has no id, its number is the prompt's id.

    Raises:
        ValueError: the line has a mistake.
    """
    row = msgspec.json.decode(line, type=_Line)
    if bool(row.turns) == bool(row.prompt):
        raise ValueError("it needs either `turns` or `prompt`, which must not be empty")
    turns = row.turns or (row.prompt,)
    question_id = str(line_number if row.question_id is None else row.question_id)
    if not question_id.strip():
        raise ValueError("`question_id` is empty")
    for turn_number, turn in enumerate(turns, start=1):
        if is_blank(turn):
            raise ValueError(f"turn {turn_number} is empty")
    return Prompt(f"{task}/{printable(question_id)}", row.category or "", turns)
