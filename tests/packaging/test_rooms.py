"""Imports go down from room to room, and no two files import each other."""

from __future__ import annotations

import pytest

from tests.packaging import rooms
from tests.packaging.rooms import FLOORS, HOUSE, heights, import_graph, in_circles, upward

GRAPH = import_graph(rooms.read_sources())


def test_every_module_is_in_a_room() -> None:
    assert {rooms.room(name) for name in GRAPH} == set(FLOORS)
    assert len(FLOORS) <= HOUSE["most"]["rooms"]


def test_imports_go_down_without_circles() -> None:
    assert sorted(upward(GRAPH) | in_circles(GRAPH)) == []


def test_rooms_have_no_more_floors_than_planned() -> None:
    floors = heights(GRAPH)
    assert max(floors.values()) <= HOUSE["most"]["floors"]
    within = [
        floors[name] for name in ("engine/layers", "engine", "engine/graphs", "engine/kernels")
    ]
    assert within == sorted({*within})


@pytest.mark.parametrize(
    "source",
    [
        "from specbench.data import tasks",
        "import specbench.data.tasks",
        "from specbench.data.tasks import load",
        "def f():\n    from specbench.data import tasks",
        "if TYPE_CHECKING:\n    from specbench.data.tasks import load",
        "import_module('specbench.data.tasks')",
        "import_module(f'specbench.data.{name}'), 'tasks'",
    ],
)
def test_an_import_of_any_form_is_seen(source: str) -> None:
    graph = import_graph({"specbench.log.a": source, "specbench.data.tasks": ""})
    assert upward(graph) == {"up specbench.log.a -> specbench.data.tasks"}


def test_a_neighbour_of_the_same_room_may_be_imported_but_not_in_a_circle() -> None:
    sources = {
        "specbench.log.a": "from specbench.log import b",
        "specbench.log.b": "from specbench.log.c import x",
        "specbench.log.c": "",
    }
    assert not upward(import_graph(sources)) | in_circles(import_graph(sources))
    sources["specbench.log.c"] = "def f():\n    from . import a"
    assert in_circles(import_graph(sources)) == {f"circle {name}" for name in sources}
