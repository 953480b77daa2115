"""Coverage by room: thresholds, messages and the sum over files."""

from __future__ import annotations

from tests.packaging.shell import ROOT
from tests.support.room_coverage import ROOMS, File, in_room, shortfalls

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


def test_every_room_has_files() -> None:
    paths = [*ROOT.glob("specbench/**/*.py"), *ROOT.glob("methods/*.py")]
    files = [File(path.relative_to(ROOT).as_posix(), 1, 1, ()) for path in paths]
    assert all(in_room(files, room) for room in ROOMS)
