"""Attacks with damaged headers, samples and traces on every command that reads a run.

Each command ends with a result, or with one message and exit code 2.
"""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from specbench.errors import UserError
from tests.faults import damage
from tests.faults.program import run_folder, specbench

TRIES = 1000
FILES = {"run.json": 5, "samples.jsonl": 10, "trace.jsonl": 1, "audit.json": 2}
"""The files, and how often each is drawn, relative to the others."""
COMMANDS = {
    ("report", "RUN"): 20,
    ("report", "RUN", "--lenient"): 15,
    ("report", "RUN", "--format", "csv"): 10,
    ("report", "RUN", "--format", "json"): 10,
    ("report", "RUN", "--format", "latex"): 5,
    ("report", "RUN", "--format", "markdown"): 5,
    ("report", "RUN", "--format", "html"): 1,
    ("compare", "RUN", "WHOLE"): 10,
    ("compare", "WHOLE", "RUN", "--force"): 5,
    ("check", "RUN", "--baseline", "WHOLE"): 10,
    ("check", "WHOLE", "--baseline", "RUN"): 5,
    ("audit", "RUN", "--tokens", "0"): 5,
    ("check", "RUN"): 5,
    ("check", "RUN", "--json"): 5,
    ("merge", "WHOLE", "RUN", "--out", "merged"): 5,
    ("list", "runs"): 10,
    ("show", "RUN"): 5,
    ("run", "--resume", "--output", "RUN", "--quiet"): 1,
}  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 10**6, 2**31, 2**63, 10**400, -0.5, 1e-320, 1e308, "", "x", "vanilla",
    "gsm8k", "\x1b[31m\x07\r\n::error::", "$\\frac{", "<script>", "=1+1", "a" * 10**5, "\ud800",
    [], {}, [None], [[]], {"": None}, [1] * 1000, "MARK",
)  # fmt: skip
MARKS = (b"1e400", b"NaN", b"-Infinity", b"[" * 5000 + b"]" * 5000, b'"\xff\xfe"', b"01", b"")
"""Texts that no JSON library writes. One of them replaces "MARK"."""


def attack(random: Random, folder: Path) -> None:
    runs = folder / "results" / "runs"
    shutil.copytree(run_folder(), runs / "whole")
    shutil.copytree(run_folder(), runs / "damaged")
    name = _draw(random, FILES)
    file = runs / "damaged" / name
    file.write_bytes(_damaged(random, file.read_bytes()))
    command = _draw(random, COMMANDS)
    places = {"RUN": runs / "damaged", "WHOLE": runs / "whole"}
    refusal = UserError("A resumed run got as far as its model.")
    with mock.patch("specbench.measure.plan.make_setup", side_effect=refusal):
        specbench(*(places.get(word, word) for word in command), folder=folder)


def _damaged(random: Random, content: bytes) -> bytes:
    """The content with one to three changes of one kind."""
    change = random.choice((damage.damaged, _change_lines, changed_value, changed_value))
    for _ in range(random.randint(1, 3)):
        content = change(random, content)
    return content


def _change_lines(random: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    first, other = random.randrange(len(lines)), random.randrange(len(lines))
    how = random.choice(("swap", "double", "drop"))
    if how == "swap":
        lines[first], lines[other] = lines[other], lines[first]
    elif how == "double":
        lines.insert(first, lines[other])
    else:
        del lines[first]
    return b"".join(lines)


def changed_value(random: Random, content: bytes) -> bytes:
    """Give one value of the file another value, or remove it."""
    is_header = content.startswith(b"{\n")
    parts = [content] if is_header else content.splitlines()
    number = random.randrange(max(1, len(parts)))
    try:
        parsed = json.loads(parts[number])
        damage.change_value(random, parsed, VALUES)
    except (ValueError, IndexError, TypeError, RecursionError):  # it is damaged already
        return damage.damaged(random, content)
    text = json.dumps(parsed, indent=2 if is_header else None).encode()
    parts[number] = text.replace(b'"MARK"', random.choice(MARKS), 1)
    return b"\n".join(parts) + b"\n"


def _draw(random: Random, weights: Any) -> Any:
    return random.choices(list(weights), list(weights.values()))[0]
