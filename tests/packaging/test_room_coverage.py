"""Coverage by room: thresholds, messages and the sum over files."""

from __future__ import annotations

from tests.packaging.shell import ROOT
from tests.support.room_coverage import ROOMS, File, in_room, read_files, shortfalls, summary

WHOLE = [File(f"{prefixes[0]}file.py", 100, 100, ()) for prefixes in ROOMS.values()]


def test_a_room_below_the_threshold_is_named_with_its_files() -> None:
    low = File("specbench/engine/low.py", 50, 100, ("7", "9->11"))
    assert shortfalls(WHOLE) == []
    room, file = shortfalls([*WHOLE, low])
    assert room == "engine: 75.0 %, below 95 %."
    assert file == "  specbench/engine/low.py 50.0 %: 7, 9->11"


def test_a_renamed_room_does_not_count_as_covered() -> None:
    (message,) = shortfalls(WHOLE[1:])
    assert message.startswith("engine: no file begins with")


def test_files_outside_the_rooms_count_for_the_total_alone() -> None:
    lines = list(summary([*WHOLE, File("specbench/report/html.py", 0, 400, ())]))
    assert [line.split()[-4] for line in lines[:-1]] == ["100.0"] * len(ROOMS)
    assert lines[-1].split()[:2] == ["total", "50.0"]


def test_lines_and_branches_count_alike() -> None:
    counts = {
        "num_statements": 5, "covered_lines": 4, "num_branches": 2, "covered_branches": 1,
    }  # fmt: skip
    found = {"summary": counts, "missing_lines": [3], "missing_branches": [[2, 3]]}
    (file,) = read_files({"files": {"methods/some.py": found}})
    assert file == File("methods/some.py", 5, 7, ("3", "2->3"))


def test_every_room_has_files() -> None:
    paths = [*ROOT.glob("specbench/**/*.py"), *ROOT.glob("methods/*.py")]
    files = [File(path.relative_to(ROOT).as_posix(), 1, 1, ()) for path in paths]
    assert all(in_room(files, room) for room in ROOMS)
