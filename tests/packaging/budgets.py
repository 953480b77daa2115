"""Lines of code of each room, and things that may not become more.

`python -m tests.packaging.budgets` prints them beside their budgets; `--write` lowers the
budgets in house.toml to what the tree has now, and never raises one.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter

from tests.packaging.rooms import HOUSE, HOUSE_FILE
from tests.packaging.shell import ROOT, output

FOLDERS = ("specbench", "methods", "benchmarks", "tests", "tools")
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_STEP = 50
"""A room's budget is a multiple of this."""


def code_lines(source: str) -> int:
    """Lines that hold code: not blank, no comment, no docstring. Imports count."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented.update(range(node.lineno, (node.end_lineno or 0) + 1))
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            used.update(range(token.start[0], token.end[0] + 1))
    return len(used - documented)


def habits(source: str) -> Counter[str]:
    """Functions over 60 lines, `fmt: skip`, and lines over 95 characters."""
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    lines = source.splitlines()
    return Counter(
        {
            "functions_over_60_lines": sum(
                (node.end_lineno or 0) - node.lineno + 1 > 60 for node in functions
            ),
            "fmt_skip": sum(line.rstrip().endswith("# fmt: " + "skip") for line in lines),
            "lines_over_95_characters": sum(len(line) > 95 for line in lines),
        }
    )


def measured() -> dict[str, Counter[str]]:
    """Lines of each folder and room, habits and size in all, under the names of house.toml."""
    totals, rooms, seen = Counter[str](), Counter[str](), Counter[str]()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            lines = code_lines(source)
            totals[folder] += lines
            if folder == "specbench":
                room = path.relative_to(ROOT / folder).with_suffix("").parts[0]
                rooms[room] += lines
            seen += habits(source)
    tracked = map(ROOT.joinpath, output(["git", "ls-files", "-z"], ROOT).split("\0")[:-1])
    num_bytes = sum(path.stat().st_size for path in tracked if path.is_file())
    seen["megabytes_in_git"] = -(-num_bytes // 10**6)
    return {"lines": totals, "lines_of_rooms": rooms, "at_most": seen}


def over_budget() -> list[str]:
    """A sentence for everything that is more than house.toml allows."""
    return [
        f"{name}: {number}, and house.toml allows {HOUSE[table].get(name, 0)}"
        for table, numbers in measured().items()
        for name, number in sorted(numbers.items())
        if number > HOUSE[table].get(name, 0)
    ]


def lowered(text: str) -> str:
    """The text of house.toml with each budget at what the tree has now, if that is less."""
    table, tables = "", measured()
    lines = []
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        elif (found := re.match(r"\"?(\w+)\"? = (\d+)", line)) and table in tables:
            name, budget = found[1], int(found[2])
            number = tables[table][name]
            if table == "lines_of_rooms":
                number = -(-number // _STEP) * _STEP
            if table == "lines":
                number = max(number, HOUSE["goal"][name])
            line = line.replace(f" = {budget}", f" = {min(number, budget)}")
        lines.append(line)
    return "\n".join([*lines, ""])


def main() -> None:
    if "--write" in sys.argv:
        text = HOUSE_FILE.read_text(encoding="utf-8")
        HOUSE_FILE.write_text(lowered(text), encoding="utf-8")
    for table, numbers in measured().items():
        print(f"[{table}]")
        for name, number in sorted(numbers.items()):
            print(f"{name:26}{number:7} of {HOUSE[table].get(name, 0)}")


if __name__ == "__main__":
    main()
