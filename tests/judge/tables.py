"""Published tables for tests, written to disk, and a recorded run to compare with."""

from pathlib import Path

from tests.support.paths import RECORDED

RUN = str(RECORDED / "amd-epyc-2-cores")
"""A recorded run of `tiny` with EAGLE-2 on MT-bench."""
_DESCRIPTION = """
name = "mine"
title = "mine"
settings = "none"
[columns]
[table.table]
title = "mine"
hardware = "not stated"
"""


def write_table(folder: Path, cells: str) -> str:
    """Write a table with these cells, which are the lines of its CSV file. Return its name."""
    (folder / "mine.toml").write_text(_DESCRIPTION)
    (folder / "mine.csv").write_text(cells)
    return str(folder / "mine")
