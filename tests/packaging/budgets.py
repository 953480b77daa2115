"""Limits on the code: statements of each room, and counts that warn of dense code.

`python -m tests.packaging.budgets` prints the counts beside their limits in house.toml.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.packaging.readability import Counts, count
from tests.packaging.rooms import HOUSE
from tests.packaging.shell import output
from tests.support.paths import ROOT

PRODUCT = ("specbench", "methods")
FOLDERS = (*PRODUCT, "benchmarks", "tests", "tools")
MAX_LINES = 400
"""Lines that no file of the product may exceed."""
USUAL_LINES = 300
"""Lines above which a file of the product needs a reason in house.toml."""
LONG_FUNCTION = 60


def source_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def room_of(path: Path) -> str:
    """The room of a file. All modules of the root are one room."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "methods":
        return "methods"
    return parts[1] if len(parts) > 2 else "root"


def counts_of_rooms() -> dict[str, Counts]:
    """The counts of each room of the product, and of everything under `all`."""
    rooms: defaultdict[str, Counts] = defaultdict(Counts)
    for folder in PRODUCT:
        for path in source_files(folder):
            counts = count(path.read_text(encoding="utf-8"))
            rooms[room_of(path)] += counts
            rooms["all"] += counts
    return dict(rooms)


def statements_of_folders(folders: Iterable[str]) -> dict[str, int]:
    return {
        folder: sum(count(path.read_text("utf-8")).statements for path in source_files(folder))
        for folder in folders
    }


def functions_over_60_lines(source: str) -> int:
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum((node.end_lineno or 0) - node.lineno + 1 > LONG_FUNCTION for node in functions)


def calls_of(function: str, sources: Iterable[str]) -> int:
    """The number of calls of a function, by its name or as an attribute of its module."""
    calls = (
        node.func
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
    )
    return sum(ast.unparse(called).rpartition(".")[2] == function for called in calls)


def skipped_by_the_formatter(source: str) -> int:
    mark = "# fmt: " + "skip"
    return sum(line.rstrip().endswith(mark) for line in source.splitlines())


def mebibytes_in_git() -> int:
    """The size in MiB of the checked-out files that git tracks, rounded up."""
    tracked = map(ROOT.joinpath, output(["git", "ls-files", "-z"], ROOT).split("\0")[:-1])
    return -(-sum(path.stat().st_size for path in tracked if path.is_file()) // 2**20)


def long_files() -> dict[str, int]:
    """The lines of each file of the product that has more than `USUAL_LINES`, by path."""
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for folder in PRODUCT
        for path in source_files(folder)
    }
    return {path: number for path, number in lines.items() if number > USUAL_LINES}


def measured() -> dict[str, Mapping[str, float]]:
    """The counts of the tree, under the names of the tables in house.toml."""
    rooms = counts_of_rooms()
    sources = [path.read_text("utf-8") for folder in FOLDERS for path in source_files(folder)]
    product = [path.read_text("utf-8") for folder in PRODUCT for path in source_files(folder)]
    lengths = long_files().values()
    return {
        "statements": {
            **{room: counts.statements for room, counts in rooms.items()},
            **statements_of_folders(folder for folder in FOLDERS if folder not in PRODUCT),
        },
        "vague_names": {name: c.vague_names_per_1000_lines for name, c in rooms.items()},
        "tokens_per_line": {name: c.tokens_per_line for name, c in rooms.items()},
        "wide_lines": {name: c.wide_lines_per_1000 for name, c in rooms.items()},
        "at_most": {
            "packed_constants": rooms["all"].packed_constants,
            "conditional_products": rooms["all"].conditional_products,
            "files_over_300_lines": len(lengths),
            "files_over_400_lines": sum(number > MAX_LINES for number in lengths),
            "functions_over_60_lines": sum(map(functions_over_60_lines, sources)),
            "calls_of_parse_choices": calls_of("parse_choices", product),
            "calls_of_find_model": calls_of("find_model", product),
            "fmt_skip": sum(map(skipped_by_the_formatter, sources)),
            "mebibytes_in_git": mebibytes_in_git(),
        },
    }


def limit_of(table: str, name: str) -> float:
    """The limit in house.toml for a name, or else for any room. Without either, it is 0."""
    limits: dict[str, float] = HOUSE[table]
    return limits.get(name, limits.get("room", 0))


def over_budget() -> list[str]:
    """A sentence for everything that is more than house.toml allows."""
    return [
        f"{table}: {name} has {number}, and house.toml allows {limit_of(table, name)}"
        for table, numbers in measured().items()
        for name, number in sorted(numbers.items())
        if number > limit_of(table, name)
    ]


def wrong_reasons(lines_of_files: Mapping[str, int], reasons: Mapping[str, str]) -> list[str]:
    """A sentence for every long file without a reason, and for every reason without its file."""
    unexplained = [
        f"{path} has {lines} lines, and [long_files] of house.toml gives no reason"
        for path, lines in lines_of_files.items()
        if not reasons.get(path)
    ]
    stale = [
        f"{path} is in [long_files] of house.toml, and has at most {USUAL_LINES} lines"
        for path in reasons
        if path not in lines_of_files
    ]
    return unexplained + stale


def main() -> None:
    for table, numbers in measured().items():
        print(f"[{table}]")
        for name, number in sorted(numbers.items()):
            print(f"{name:26}{number:8} of {limit_of(table, name)}")


if __name__ == "__main__":
    main()
