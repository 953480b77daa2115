"""The prompt file format: one JSON object a line, with `turns` or `prompt`.

Reports every mistake with file, line and reason.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class _LineError(Exception):
    """A mistake in a line. The caller adds the line number."""


def parse_prompts(path: Path, task: str) -> tuple[Prompt, ...]:
    """All prompts of a file in order, with ids prefixed by `task`.

    Raises:
        UserError: the file is unreadable or empty, or a line is broken (the first one is named).
    """
    with os_errors(f"Prompt file {path} cannot be read", "Check its path and permissions."):
        data = path.read_bytes()
    prompts: dict[str, Prompt] = {}
    seen: dict[str, int] = {}
    for number, line in _lines(data):
        try:
            prompt = _parse_line(line, number, task)
            if prompt.sample_id in seen:
                question_id = prompt.sample_id.removeprefix(f"{task}/")
                first = seen[prompt.sample_id]
                raise _LineError(f"question_id {question_id!r} is already used in line {first}")
        except _LineError as error:
            raise UserError(f"Prompt file {path}, line {number}: {error}.", _HINT) from error
        seen[prompt.sample_id] = number
        prompts[prompt.sample_id] = prompt
    if not prompts:
        raise UserError(f"Prompt file {path} is empty.", _HINT)
    return tuple(prompts.values())


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank. Only \\n ends a line: articles contain U+2028."""
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _parse_line(line: bytes, number: int, task: str) -> Prompt:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _LineError(f"not UTF-8 (byte {error.start + 1} of the line)") from error
    except (ValueError, RecursionError) as error:
        raise _LineError(f"broken JSON ({error})") from error
    if not isinstance(row, dict):
        raise _LineError(f"a JSON object is expected, not {_kind(row)}")
    category = row.get("category") or ""
    if not isinstance(category, str):
        raise _LineError(f"`category` is {_kind(category)}, not a string")
    return Prompt(f"{task}/{_question_id(row, number)}", category, _turns(row))


def _question_id(row: dict[str, Any], number: int) -> str:
    question_id = row.get("question_id")
    if question_id is None:
        return str(number)
    is_usable = isinstance(question_id, str | int) and not isinstance(question_id, bool)
    if not is_usable or question_id == "":
        raise _LineError(f"`question_id` is {question_id!r}, not a number or a name")
    return printable(_text(str(question_id), "`question_id`"))


def _turns(row: dict[str, Any]) -> tuple[str, ...]:
    if "turns" in row and "prompt" in row:
        raise _LineError("has both `turns` and `prompt`")
    if "prompt" in row:
        return (_text(row["prompt"], "`prompt`"),)
    if "turns" not in row:
        raise _LineError("`turns` is missing")
    turns = row["turns"]
    if not isinstance(turns, list):
        raise _LineError(f"`turns` is {_kind(turns)}, not a list of strings")
    if not turns:
        raise _LineError("`turns` is empty")
    return tuple(_text(turn, f"turn {i}") for i, turn in enumerate(turns, start=1))


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _LineError(f"{name} is {_kind(value)}, not a string")
    if not value.strip():
        raise _LineError(f"{name} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _LineError(f"{name} holds half a surrogate pair, which is not valid text") from error
    return value


def _kind(value: Any) -> str:
    """JSON's word for a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    return names[type(value)]
