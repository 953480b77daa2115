"""The table of `benchmarks.step_cost`."""

import re
import subprocess

import pytest
import torch

from benchmarks import step_cost


def test_a_table_has_a_row_for_each_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_cost, "bandwidth", lambda device, block: 2e10)
    monkeypatch.setattr(step_cost, "PRODUCT", 64)
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command))
        return started[-1]

    monkeypatch.setattr(step_cost, "Popen", start)
    before = torch.get_num_threads()
    words = "--model tiny --dtype float32 --rows 1 3 --threads 1 --prompt 20 --steps 4 --rounds 1"
    words += " --neighbour"
    try:
        assert step_cost.main(words.split()) == 0
    finally:
        torch.set_num_threads(before)
    title, heads, _, *rows, level = capsys.readouterr().out.strip().splitlines()
    assert "20.0 GB/s read" in title
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["1", "3"]
    assert all(len(row) == heads.count("|") - 1 for row in cells)
    assert cells[0][2] == "1.00"
    assert float(cells[1][1]) > 0
    assert cells[1][-1] == "1.00"  # no wrong token was accepted
    assert re.match(r"A draft level of 10 nodes \(\d+ MB\): \S+ ms, \S+ of vanilla's step", level)
    assert [process.returncode for process in started] == [-9]  # the neighbour has ended
